"""Draw a rule graph: snakemake pass1 regret --rulegraph dot | python workflow/scripts/rulegraph.py docs/rulegraph.png

A trained model is a model: from `train` the graph goes round to the sampling rules again (the curved red arrows).
"""

import re
import sys

import matplotlib as mpl
import networkx as nx

mpl.use("Agg")
import matplotlib.pyplot as plt

text = sys.stdin.read()
labels = dict(re.findall(r'(\d+)\s*\[label\s*=\s*"([^"]+)"', text))
graph = nx.DiGraph(re.findall(r"(\d+)\s*->\s*(\d+)", text))
graph.remove_nodes_from([node for node, label in labels.items() if label == "all"])
graph.remove_edges_from(list(nx.selfloop_edges(graph)))  # datasets wait for those they must not share with
again = [edge for edge in graph.edges if labels[edge[0]] == "train"]
graph.remove_edges_from(again)
graph = nx.transitive_reduction(graph)  # what follows from other arrows is left out
for layer, nodes in enumerate(nx.topological_generations(graph)):
    for node in nodes:
        graph.nodes[node]["layer"] = layer
positions = nx.multipartite_layout(graph, subset_key="layer")
figure, axis = plt.subplots(figsize=(13, 6), layout="constrained")
style = {"ax": axis, "node_size": 2800, "arrowsize": 9}
nx.draw_networkx_edges(graph, positions, edge_color="#888888", **style)
curved = {"edge_color": "#D55E00", "connectionstyle": "arc3,rad=0.25"}
nx.draw_networkx_edges(graph, positions, edgelist=again, **curved, **style)
for node, (x, y) in positions.items():
    box = {"boxstyle": "round,pad=0.35", "facecolor": "#EAF2F8", "edgecolor": "#4A6FA5"}
    axis.text(x, y, labels[node].replace("_", "\n", 1), ha="center", va="center", fontsize=9, bbox=box)
axis.set_axis_off()
axis.margins(0.06)
figure.savefig(sys.argv[1], dpi=120, metadata={"Software": None})
