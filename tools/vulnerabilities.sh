#!/bin/sh
# vulnerabilities.sh [DB]   looks in every module, and in the programs that are released, for vulnerabilities
#                           that the Go project knows and that they can reach. DB is the address of another
#                           database than https://vuln.go.dev.
set -eu
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

GOBIN=$tmp GOWORK=off GOFLAGS='' go install golang.org/x/vuln/cmd/govulncheck@v1.9.0
failed=
look() { # NAME ARGUMENT...
	name=$1
	shift
	echo "$name"
	"$tmp/govulncheck" ${db:+-db "$db"} "$@" || failed="$failed $name"
}
db=${1:-}

for mod in $(git ls-files go.mod '*/go.mod'); do
	dir=$(dirname "$mod")
	packages=./...
	[ "$dir" != tools ] || packages=tool
	look "$dir" -C "$dir" "$packages"
done

# With their symbols, which released programs lack: without them, govulncheck reports what the linker left out.
for platform in linux/amd64 darwin/arm64 windows/amd64; do
	program=$tmp/throttle-${platform%/*}
	(cd cmd/throttle && CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go build -trimpath -o "$program" .)
	look "the command for $platform" -mode binary "$program"
done

[ -z "$failed" ] || {
	echo "vulnerable:$failed" >&2
	exit 1
}
