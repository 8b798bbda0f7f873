"""Tests of jobq.operations. The tests of the faces try most of it as well."""
