"""Packages the extension for VS Code: a zip archive with the extension, what it needs, and two
manifests.

    python editors/vscode/make_vsix.py [FOLDER]

Run `npm ci --omit=dev --ignore-scripts` in `editors/vscode` first. Writes
`FOLDER/evaluator-templates-VERSION.vsix` (default: `dist`). Equal files give an equal archive.

Source: the layout that `vsce package` writes, Open Packaging Conventions (ECMA-376, part 2).
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

HERE = Path(__file__).parent
_OWN = ("package.json", "extension.js", "README.md")
_LEFT_OUT = (".map", ".d.ts", ".md", ".yml", ".tsbuildinfo")
_TYPES = """<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">\
<Default Extension=".json" ContentType="application/json"/>\
<Default Extension=".js" ContentType="application/javascript"/>\
<Default Extension=".md" ContentType="text/markdown"/>\
<Default Extension=".txt" ContentType="text/plain"/>\
<Default Extension=".vsixmanifest" ContentType="text/xml"/></Types>
"""


def manifest(package: dict[str, str]) -> str:
    identity = (
        f'<Identity Language="en-US" Id={quoteattr(package["name"])} '
        f"Version={quoteattr(package['version'])} Publisher={quoteattr(package['publisher'])}/>"
    )
    engine = quoteattr(package["engines"]["vscode"])
    return f"""<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    {identity}
    <DisplayName>{escape(package["displayName"])}</DisplayName>
    <Description xml:space="preserve">{escape(package["description"])}</Description>
    <Categories>{escape(",".join(package["categories"]))}</Categories>
    <GalleryFlags>Public</GalleryFlags>
    <Properties>
      <Property Id="Microsoft.VisualStudio.Code.Engine" Value={engine}/>
      <Property Id="Microsoft.VisualStudio.Code.ExtensionKind" Value="workspace"/>
    </Properties>
  </Metadata>
  <Installation>
    <InstallationTarget Id="Microsoft.VisualStudio.Code"/>
  </Installation>
  <Dependencies/>
  <Assets>
    <Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" \
Addressable="true"/>
    <Asset Type="Microsoft.VisualStudio.Services.Content.Details" Path="extension/README.md" \
Addressable="true"/>
  </Assets>
</PackageManifest>
"""


def make_vsix(source: Path, target: Path) -> Path:
    """Writes the archive into the folder `target`. Raises: SystemExit, without `node_modules`."""
    package = json.loads((source / "package.json").read_text(encoding="utf-8"))
    modules = source / "node_modules"
    missing = [name for name in package["dependencies"] if not (modules / name).is_dir()]
    if missing:
        raise SystemExit(f"{missing[0]} is missing; run npm ci in {source}")
    files = {f"extension/{name}": (source / name).read_bytes() for name in _OWN}
    for path in sorted(modules.rglob("*")):
        name = path.relative_to(source).as_posix()
        is_hidden = any(part.startswith(".") for part in path.relative_to(source).parts)
        if path.is_file() and not is_hidden and not name.lower().endswith(_LEFT_OUT):
            files[f"extension/{name}"] = path.read_bytes()
    files["[Content_Types].xml"] = _TYPES.encode()
    files["extension.vsixmanifest"] = manifest(package).encode()
    target.mkdir(parents=True, exist_ok=True)
    archive = target / f"{package['name']}-{package['version']}.vsix"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, data)
    return archive


if __name__ == "__main__":
    print(make_vsix(HERE, Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
