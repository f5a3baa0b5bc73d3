// Starts `evaluator lsp` and shows what its commands return in a document beside the template.
"use strict";

const { window, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

const COMMANDS = ["evaluator.render", "evaluator.simulate"];
let client;

async function showResult(text) {
  const document = await workspace.openTextDocument({ content: text, language: "plaintext" });
  await window.showTextDocument(document, { preview: true, viewColumn: -2, preserveFocus: true });
}

async function activate() {
  const settings = workspace.getConfiguration("evaluator");
  const [command, ...words] = settings.get("command");
  const folder = workspace.workspaceFolders && workspace.workspaceFolders[0];
  client = new LanguageClient(
    "evaluator",
    "evaluator",
    {
      command,
      args: [...words, "lsp"],
      options: folder ? { cwd: folder.uri.fsPath } : undefined,
    },
    {
      documentSelector: [{ scheme: "file", language: "xml" }],
      initializationOptions: { showsResults: true, model: settings.get("model") },
      middleware: {
        executeCommand: async (name, values, next) => {
          const result = await next(name, values);
          if (COMMANDS.includes(name) && typeof result === "string") {
            await showResult(result);
          }
          return result;
        },
      },
    },
  );
  await client.start();
}

function deactivate() {
  return client && client.stop();
}

module.exports = { activate, deactivate };
