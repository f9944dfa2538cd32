"""No module imports itself through others, type-checking imports included; import-linter checks the floors."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_import_circles() -> None:
    graph = grimp.build_graph("app", "modules", "scripts", "tandem")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle
