"""Runs all tests, or those of the named modules, and prints a line of JSON for each: ``{"name": ..,
"outcome": "passed" | "failed" | "skipped", "why": ..}``."""

import json
import pathlib
import sys
import unittest


class Result(unittest.TestResult):
    def tell(self, test, outcome, why=""):
        print(json.dumps({"name": test.id(), "outcome": outcome, "why": why}), flush=True)

    def addSuccess(self, test):
        self.tell(test, "passed")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.tell(test, "failed", self._exc_info_to_string(err, test)[-2000:])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.tell(subtest, "failed", self._exc_info_to_string(err, test)[-2000:])

    addError = addFailure

    def addSkip(self, test, reason):
        self.tell(test, "skipped", reason)


if __name__ == "__main__":
    result = Result()
    if sys.argv[1:]:
        suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
    else:
        suite = unittest.defaultTestLoader.discover(str(pathlib.Path(__file__).parent))
    suite.run(result)
    sys.exit(0 if result.wasSuccessful() else 1)
