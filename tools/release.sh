#!/bin/sh
# release.sh VERSION --prepare   writes what the commit of a release needs: the date into CHANGELOG.md,
#                                VERSION into the go.mod files, and its sums into the go.sum files
# release.sh VERSION --dry-run   proves that the last commit can be released: users get each module and the
#                                command from a proxy with what the go command makes of the commit
# release.sh VERSION             does the same and tags the commit; it pushes nothing
#
# docs/releasing.md has the whole procedure.
set -eu
cd "$(dirname "$0")/.."
GOWORK=off exec go run ./internal/release "$@"
