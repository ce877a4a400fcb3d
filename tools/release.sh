#!/bin/sh
# release.sh VERSION --prepare   writes what the commit of a release needs: the date into CHANGELOG.md,
#                                VERSION into the go.mod files, and its sums into the go.sum files
# release.sh VERSION --dry-run   proves that the last commit can be released: users get each module and the
#                                command from a proxy with what the go command makes of the commit
# release.sh VERSION             does the same and tags the commit; it pushes nothing
# release.sh --rehearse          releases v0.1.0 and v0.1.1, which retracts v0.1.0, from a copy of the tree,
#                                and shows what their users see
#
# docs/releasing.md has the whole procedure.
set -eu
cd "$(dirname "$0")/.."
export GOWORK=off GOFLAGS=
if [ "${1-}" = --rehearse ]; then
	exec go test -count=1 -timeout 60m -run Rehearsal -v ./internal/release -args -full
fi
exec go run ./internal/release "$@"
