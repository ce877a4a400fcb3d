#!/bin/sh
# dist.sh DIRECTORY [PLATFORM...]   builds the command for platforms such as linux/amd64, by default for
#                                   all that are released, with the SHA-256 sums of the programs
# dist.sh -check [PLATFORM...]      builds the last commit in two other directories, one of them without
#                                   a cache, and compares the programs; by default for this platform
#
# Programs are the same bit for bit in every directory and on every system, with the same version of
# Go. The version that they print is that of the tag cmd/throttle/vX.Y.Z, or else the commit's.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
sums=sha256sum
command -v sha256sum >/dev/null || sums="shasum -a 256"

build() { # SOURCE DIRECTORY PLATFORM...
	source=$1 to=$2
	shift 2
	mkdir -p "$to"
	to=$(cd "$to" && pwd)
	rm -f "$to"/throttle-* "$to/SHA256SUMS"
	for platform; do
		os=${platform%/*} arch=${platform#*/} exe=
		[ "$os" = windows ] && exe=.exe
		(cd "$source/cmd/throttle" &&
			CGO_ENABLED=0 GOOS=$os GOARCH=$arch GOAMD64=v1 GOARM64=v8.0 GOFLAGS= GOEXPERIMENT= GOWORK= \
				go build -trimpath -buildvcs=auto -ldflags=-s -o "$to/throttle-$os-$arch$exe" .)
	done
	(cd "$to" && $sums throttle-* >SHA256SUMS && cat SHA256SUMS)
}

if [ "$1" != -check ]; then
	to=$1
	shift
	[ $# -gt 0 ] || set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
	build "$root" "$to" "$@"
	exit
fi

shift
[ $# -gt 0 ] || set -- "$(go env GOOS)/$(go env GOARCH)"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
git clone -q "$root" "$tmp/one"
git clone -q "$root" "$tmp/a/longer/path/two"
build "$tmp/one" "$tmp/first" "$@"
GOCACHE=$tmp/cache build "$tmp/a/longer/path/two" "$tmp/second" "$@" >/dev/null
for file in "$tmp"/first/*; do
	cmp "$file" "$tmp/second/${file##*/}"
done
echo "the programs of two directories are the same"
