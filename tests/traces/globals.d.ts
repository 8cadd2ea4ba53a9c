// What the page's script finds beside it: the bundled libraries (mrt/traces/vendor/).
declare const katex: any, renderMathInElement: any, uPlot: any;
