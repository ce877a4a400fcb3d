#!/bin/sh
# image.sh IMAGE VERSION GO PROGRAMS   builds the image of the last commit with a version of Go, compares its programs
#                                      with those in a directory, pushes it as IMAGE:VERSION, and prints its digest
#
# All times in the image are the time of the commit. So a second run builds the same image, unless GO, the certificates of
# the build image, or BuildKit have changed. The script never moves a tag: one that exists must have the digest of
# what was built. It therefore pushes by digest first. That also makes the registry say "not found" of a new tag,
# rather than deny access to an unknown package.
set -eu
image=$1 tag=$1:${2#v} go=$3 programs=$(cd "$4" && pwd)
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

build() {
	docker buildx build -f contrib/Containerfile --build-arg "GO=$go" --platform linux/amd64,linux/arm64 \
		--label "org.opencontainers.image.source=$GITHUB_SERVER_URL/$GITHUB_REPOSITORY" \
		--label "org.opencontainers.image.revision=$(git rev-parse HEAD)" \
		--label "org.opencontainers.image.version=${tag##*:}" \
		--label org.opencontainers.image.licenses=MIT \
		--provenance=false --sbom=false "$@" . >&2
}

# look sets digest to that of the tag, or to "" if there is none.
look() {
	if docker buildx imagetools inspect "$tag" --format '{{json .Manifest}}' >"$tmp/manifest" 2>"$tmp/error"; then
		digest=$(jq -er .digest "$tmp/manifest")
	elif grep -q ': not found$' "$tmp/error"; then
		digest=
	else
		cat "$tmp/error" >&2
		exit 1
	fi
}

build --output "type=local,dest=$tmp/image"
for arch in amd64 arm64; do
	cmp "$tmp/image/linux_$arch/throttle" "$programs/throttle-linux-$arch" >&2
done
build --output "type=image,name=$image,push=true,push-by-digest=true,oci-mediatypes=true,rewrite-timestamp=true" \
	--metadata-file "$tmp/meta.json"
built=$(jq -er '."containerimage.digest"' "$tmp/meta.json")
look
if [ -z "$digest" ]; then
	docker buildx imagetools create --tag "$tag" "$image@$built" >&2
	look
fi
[ "$digest" = "$built" ] || {
	echo "::error::$tag is $digest, which is left as it is, and this run has built $built: see \"A failed release\" in docs/releasing.md" >&2
	exit 1
}
echo "$digest"
