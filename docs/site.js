// Draws the formulas that pymdownx.arithmatex marked.
for (const formula of document.querySelectorAll(".arithmatex"))
  renderMathInElement(formula, { delimiters: [{ left: "\\(", right: "\\)" }, { left: "\\[", right: "\\]", display: true }] });
