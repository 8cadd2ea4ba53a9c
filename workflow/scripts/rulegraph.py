"""Draw a rule graph: snakemake pass1 regret --rulegraph dot | python workflow/scripts/rulegraph.py docs/rulegraph.png

A trained model is a model: from `train` the graph goes round to the sampling rules again (the curved red arrows).
"""

import re
import sys

import matplotlib as mpl
import networkx as nx

mpl.use("Agg")
import matplotlib.pyplot as plt

plt.rcdefaults()  # the same picture whatever the user's matplotlibrc
text = sys.stdin.read()
labels = dict(re.findall(r'(\d+)\s*\[label\s*=\s*"([^"]+)"', text))
graph = nx.DiGraph(re.findall(r"(\d+)\s*->\s*(\d+)", text))
graph.remove_nodes_from([node for node, label in labels.items() if label in ("all", "check_contamination")])
# A sampled table is one box: its request, what samples it, and what gathers it.
gathers = [node for node in graph if labels[node].startswith("gather_")]
requests = [node for node in graph if labels[node] == "request"]
samplers = {node for request in requests for node in graph.successors(request)} - set(gathers)
sampler_of = {node: samplers.intersection(graph.predecessors(node)).pop() for node in gathers}
graph.remove_nodes_from(requests)
graph = nx.relabel_nodes(graph, sampler_of)
graph.remove_edges_from(list(nx.selfloop_edges(graph)))  # datasets wait for those they must not share with
again = [edge for edge in graph.edges if labels[edge[0]] == "train"]
graph.remove_edges_from(again)
graph = nx.transitive_reduction(graph)  # what follows from other arrows is left out
# Each rule is as late as its successors allow, and within a layer in the order of its inputs: few arrows then cross.
layers: dict[int, list[str]] = {}
height: dict[str, float] = {}
for layer, nodes in enumerate(reversed(list(nx.topological_generations(graph.reverse())))):
    from_above = {node: [height[p] for p in graph.predecessors(node)] for node in nodes}
    layers[layer] = sorted(nodes, key=lambda node: sum(from_above[node]) / max(len(from_above[node]), 1))
    height |= {node: place - (len(nodes) - 1) / 2 for place, node in enumerate(layers[layer])}
positions = nx.multipartite_layout(graph, subset_key=layers)
figure, axis = plt.subplots(figsize=(13, 6))
axis.plot(*zip(*positions.values(), strict=True), linestyle="")  # so that the axis knows its extent
boxes = {}
for node, (x, y) in positions.items():
    box = {"boxstyle": "round,pad=0.35", "facecolor": "#EAF2F8", "edgecolor": "#4A6FA5"}
    name = labels[node].replace("_", "\n", 1)
    boxes[node] = axis.text(x, y, name, ha="center", va="center", fontsize=9, bbox=box, zorder=3)
for edges, colour, bend in ((graph.edges, "#888888", 0.0), (again, "#D55E00", 0.25)):
    for start, end in edges:
        arrow = {"arrowstyle": "-|>", "color": colour, "connectionstyle": f"arc3,rad={bend}"}
        ends = {"patchA": boxes[start].get_bbox_patch(), "patchB": boxes[end].get_bbox_patch()}
        axis.annotate("", positions[end], positions[start], arrowprops=arrow | ends)
axis.set_axis_off()
axis.margins(0.06)
figure.savefig(sys.argv[1], dpi=120, bbox_inches="tight", metadata={"Software": None})
