// Runs test files that are written for mocha's "tdd" interface, one test after the other, and writes what became of them:
// {"passed": [NAME, ...], "failed": {NAME: MESSAGE}}. mocha itself would be 170 packages.
//
// QQ_INTEROP_FILES: the files, separated by blanks; QQ_INTEROP_REPORT: where the report goes.
'use strict';

const fs = require('node:fs');

const TIMEOUT_MS = 10000;
const path = [];
const teardowns = [];
const tests = [];

global.suite = (name, body) => {
  path.push(name);
  teardowns.push([]);
  body();
  teardowns.pop();
  path.pop();
};
global.teardown = (body) => teardowns[teardowns.length - 1].push(body);
global.test = (name, body) => {
  tests.push({ name: [...path, name].join('.'), body, teardowns: teardowns.flat() });
};

function run(body) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`not done after ${TIMEOUT_MS} ms`)), TIMEOUT_MS);
    const settle = (error) => {
      clearTimeout(timer);
      process.off('uncaughtException', settle);
      if (error) reject(error);
      else resolve();
    };
    process.on('uncaughtException', settle);
    try {
      if (body.length > 0) body(settle);
      else Promise.resolve(body()).then(() => settle(), settle);
    } catch (error) {
      settle(error);
    }
  });
}

async function main() {
  const report = { passed: [], failed: {} };
  for (const { name, body, teardowns } of tests) {
    try {
      await run(body);
      report.passed.push(name);
    } catch (error) {
      report.failed[name] = String(error);
    }
    teardowns.forEach((teardown) => teardown());
  }
  fs.writeFileSync(process.env.QQ_INTEROP_REPORT, JSON.stringify(report));
  // Connections that the tests leave open would keep the process alive.
  process.exit();
}

process.env.QQ_INTEROP_FILES.split(' ').forEach((file) => require(file));
main();
