"""What editors get: the extension for VS Code, the catalog of schemas, and a real editor without a window."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evaluator.cli.init import project_files
from tests.editor.conftest import PLAN, write_project

REPOSITORY = Path(__file__).parents[2]
EXTENSION = REPOSITORY / "editors" / "vscode"


def test_the_extension_is_packaged_with_what_it_needs(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_vsix", EXTENSION / "make_vsix.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = tmp_path / "source"
    for name in ("package.json", "extension.js", "README.md"):
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copy(EXTENSION / name, source / name)
    with pytest.raises(SystemExit, match="npm ci"):
        module.make_vsix(source, tmp_path / "out")
    client = source / "node_modules" / "vscode-languageclient"
    client.mkdir(parents=True)
    for name in ("node.js", "node.js.map", "node.d.ts"):
        (client / name).write_text("x", encoding="utf-8")
    archive = module.make_vsix(source, tmp_path / "out")
    first = archive.read_bytes()
    assert module.make_vsix(source, tmp_path / "out").read_bytes() == first
    with zipfile.ZipFile(archive) as file:
        names = set(file.namelist())
        package = json.loads(file.read("extension/package.json"))
        manifest = ElementTree.fromstring(file.read("extension.vsixmanifest"))
        ElementTree.fromstring(file.read("[Content_Types].xml"))
    assert names == {
        "[Content_Types].xml",
        "extension.vsixmanifest",
        "extension/package.json",
        "extension/extension.js",
        "extension/README.md",
        "extension/node_modules/vscode-languageclient/node.js",
    }
    assert f"extension/{package['main'].removeprefix('./')}" in names
    identity = manifest.find("{*}Metadata/{*}Identity")
    assert identity is not None and identity.get("Version") == package["version"]
    assert package["capabilities"]["untrustedWorkspaces"]["supported"] is False


def test_the_catalog_leads_to_the_schemas_without_the_network() -> None:
    schemas = REPOSITORY / "schemas"
    entries = list(ElementTree.parse(schemas / "catalog.xml").getroot())
    names = {
        entry.get("name") or entry.get("uriSuffix") or entry.get("systemIdSuffix")
        for entry in entries
    }
    assert {"urn:evaluator:task.xsd", "schemas/task.xsd", "schemas/handler.xsd"} <= names
    for entry in entries:
        uri = entry.get("uri") or ""
        assert ElementTree.parse(schemas / uri).getroot().tag.endswith("}schema")
        assert any(uri in (entry.get(key) or "") for key in ("name", "uriSuffix", "systemIdSuffix"))


def test_a_new_project_brings_the_catalog_and_names_it() -> None:
    files = project_files("classify")
    settings = json.loads(files[".vscode/settings.json"])
    assert all(name in files for name in settings["xml.catalogs"])


SCRIPT = """
local client = vim.lsp.start_client({
  name = 'evaluator', cmd = {COMMAND, '-m', 'evaluator', 'lsp'}, root_dir = vim.fn.getcwd(),
})
vim.cmd('edit templates/plan.xml')
vim.lsp.buf_attach_client(0, client)
local function codes()
  local found = {}
  for _, each in ipairs(vim.diagnostic.get(0)) do table.insert(found, each.code) end
  return found
end
vim.wait(60000, function() return #codes() > 0 end, 20)
local before = codes()
vim.cmd('%s/lettr/letter/')
vim.wait(60000, function() return #codes() == 0 end, 20)
local answer = vim.lsp.buf_request_sync(0, 'textDocument/hover', {
  textDocument = vim.lsp.util.make_text_document_params(), position = {line = 0, character = 2},
}, 60000)
local _, first = next(answer)
local out = {before = before, after = #codes(), hover = first.result.contents.value}
vim.fn.writefile({vim.fn.json_encode(out)}, 'out.json')
vim.cmd('qall!')
"""


@pytest.mark.skipif(shutil.which("nvim") is None, reason="Neovim is not installed")
def test_neovim_shows_findings_while_one_types(tmp_path: Path) -> None:
    folder = write_project(tmp_path.resolve())
    text = PLAN.replace("{{ letter |", "{{ lettr |")
    (folder / "templates" / "plan.xml").write_text(text, encoding="utf-8")
    (folder / "script.lua").write_text(
        SCRIPT.replace("COMMAND", repr(sys.executable)), encoding="utf-8"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        ["nvim", "--headless", "-u", "NONE", "-i", "NONE", "-n", "-c", "luafile script.lua"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert found["before"] == ["undefined-variable"], done.stderr
    assert found["after"] == 0 and "at most 2 model calls" in found["hover"]
