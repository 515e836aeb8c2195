"""The rules of the source tree: who includes whom, where foreign headers may appear, how long a file may be, and
that the documents name files which exist. Needs nothing but Python and the sources."""

import glob
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 500

# core -> comm -> {sp, zero, alst, data} -> model -> plan -> train -> cli. Modules in one set do not know each other.
LAYERS = [{"core"}, {"comm"}, {"sp", "zero", "alst", "data"}, {"model"}, {"plan"}, {"train"}, {"cli"}]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
C10D = re.compile(r"c10d|torch/csrc/distributed/|gloo/")


def sources(*folders, suffixes=(".h", ".cpp")):
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def module_of(path):
    """The module that a file (relative to the root) belongs to; None outside trireme/ and cli/."""
    parts = Path(path).parts
    if parts[0] == "cli":
        return "cli"
    return parts[1] if parts[0] == "trireme" and len(parts) > 2 else None


def may_include(module, other):
    return module == other or LEVEL[other] < LEVEL[module]


def violations(name, text):
    """What a file of that name and text does against the rules of including."""
    module = module_of(name)
    for included in INCLUDE.findall(text):
        other = module_of(included)
        if other is not None and other not in LEVEL:
            yield f"{name} includes {included}, of a module without a layer"
        elif other is not None and module is not None and not may_include(module, other):
            yield f"{name} includes {included}: {module} must not know {other}"
        if C10D.search(included) and module != "comm":
            yield f"{name} includes {included}: c10d is called from trireme/comm alone"
        if included.startswith("CLI/") and module != "cli":
            yield f"{name} includes {included}: the command line is read in cli/ alone"


class Layering(unittest.TestCase):
    def test_includes_follow_the_layers(self):
        found = [v for path in sources("trireme", "cli") for v in violations(name_of(path), path.read_text())]
        self.assertEqual(found, [])

    def test_the_scan_sees_what_it_should(self):
        bad = [("trireme/sp/a.cpp", "trireme/zero/unit.h"), ("trireme/core/a.h", "trireme/comm/group.h"),
               ("trireme/model/a.h", "trireme/train/options.h"), ("trireme/train/a.h", "cli/launcher.h"),
               ("trireme/zero/a.cpp", "torch/csrc/distributed/c10d/ProcessGroup.hpp"),
               ("trireme/train/a.cpp", "CLI/CLI.hpp"), ("trireme/train/a.cpp", "trireme/unknown/x.h")]
        good = [("trireme/sp/a.cpp", "trireme/comm/group.h"), ("trireme/sp/a.cpp", "trireme/sp/slice.h"),
                ("trireme/comm/a.cpp", "torch/csrc/distributed/c10d/ProcessGroup.hpp"), ("cli/main.cpp", "CLI/CLI.hpp"),
                ("cli/main.cpp", "trireme/train/trainer.h"), ("trireme/core/a.h", "vector")]
        for name, included in bad:
            self.assertEqual(len(list(violations(name, f'#include "{included}"\n'))), 1, (name, included))
        for name, included in good:
            self.assertEqual(list(violations(name, f"#include <{included}>\n")), [], (name, included))

    def test_project_headers_are_included_by_their_whole_path(self):
        for path in sources("trireme", "cli"):
            for line in path.read_text().splitlines():
                if match := re.match(r'\s*#\s*include\s*"([^"]+)"', line):
                    self.assertTrue((ROOT / match[1]).is_file(), f"{name_of(path)} includes {match[1]}")


class Files(unittest.TestCase):
    def test_every_header_has_a_guard(self):
        for path in sources("trireme", "cli", "tests", "bench", suffixes=(".h",)):
            # A "-inl.h" is included once for each instruction set.
            guard = "HWY_TARGET_TOGGLE" if path.name.endswith("-inl.h") else "#pragma once\n"
            self.assertIn(guard, path.read_text(), name_of(path))

    def test_no_file_is_too_long(self):
        for path in sources("trireme", "cli", "tests", "bench", "examples", "scripts",
                            suffixes=(".h", ".cpp", ".py", ".sh", ".txt")):
            lines = path.read_text().count("\n")
            self.assertLessEqual(lines, MAX_LINES, f"{name_of(path)} has {lines} lines: split it")

    def test_every_source_is_built(self):
        """A file that no CMakeLists.txt names is never compiled, and a test in it never runs."""
        for path in sources("trireme", "cli", "tests", "bench", suffixes=(".cpp",)):
            lists = [folder / "CMakeLists.txt" for folder in (path.parent, path.parent.parent)]
            named = any(re.search(rf"\b{re.escape(path.stem)}\b", text.read_text()) for text in lists if text.is_file())
            self.assertTrue(named, f"no CMakeLists.txt beside or above {name_of(path)} names it")


# Folders that a path in the documents can begin with; others (build/, runs/, models/) are made by running things.
DOCUMENTED = ("trireme", "cli", "tests", "bench", "docs", "examples", "scripts", "cmake", "python", ".ci")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)  # a lambda looks like a link
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PATH = re.compile(r"(?<![\w./-])((?:" + "|".join(map(re.escape, DOCUMENTED)) + r")/[\w./*-]*)")


def named_paths(text):
    """Paths of the repository that a document names: link targets, and words that begin with one of its folders."""
    links = [target for target in LINK.findall(CODE.sub("", text)) if "://" not in target]
    return links, [word.rstrip(".") for word in PATH.findall(text)]


class Documents(unittest.TestCase):
    def documents(self):
        return [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.is_file()]

    def test_named_paths_exist(self):
        for document in self.documents():
            links, words = named_paths(document.read_text())
            for target in links:
                self.assertTrue((document.parent / target).exists(), f"{name_of(document)} links to {target}")
            for word in words:
                self.assertTrue(glob.glob(str(ROOT / word)), f"{name_of(document)} names {word}")

    def test_the_scan_sees_paths(self):
        links, words = named_paths("See [x](docs/a.md#part), `trireme/sp/slice.h`, tests/golden/*.py. Not build/bin/trireme.")
        self.assertEqual(named_paths("```cpp\n[&](int n) {}\n```\n")[0], [])
        self.assertEqual(links, ["docs/a.md"])
        self.assertEqual(words, ["docs/a.md", "trireme/sp/slice.h", "tests/golden/*.py"])


if __name__ == "__main__":
    unittest.main()
