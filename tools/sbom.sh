#!/bin/sh
# sbom.sh DIRECTORY VERSION   writes a bill of materials in CycloneDX beside each program that dist.sh built,
#                             such as throttle-linux-amd64.cdx.json, and adds their SHA-256 sums to SHA256SUMS
#
# Programs are built in the workspace of cmd/throttle, so they name the library and module postgres by their
# directories. The bill names them by their paths, and VERSION.
set -eu
dir=$1 version=$2
sums=sha256sum
command -v sha256sum >/dev/null || sums="shasum -a 256"
module=github.com/apithrottle/throttle

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
GOBIN=$tmp GOWORK=off GOFLAGS='' go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

cd "$dir"
rm -f throttle-*.cdx.json
for program in throttle-*; do
	"$tmp/cyclonedx-gomod" bin -json -std -noserial -notimestamp -version "$version" -output "$tmp/bill" "$program"
	sed -e "s|\.\./\.\./|$module/|; s|\.\./\.\.|$module|; s|(devel)|$version|" "$tmp/bill" >"$program.cdx.json"
done
grep -v 'cdx\.json$' SHA256SUMS >"$tmp/sums"
$sums throttle-*.cdx.json >>"$tmp/sums"
cp "$tmp/sums" SHA256SUMS
cat SHA256SUMS
