#!/usr/bin/env bash
# Get the programs that some tests need besides Python, on Debian and Ubuntu: Prometheus with promtool, and Chromium.
#
#     scripts/test_tools.sh FOLDER    # prints what to export, for: eval "$(scripts/test_tools.sh .tools)"
#
# Prometheus is unpacked into FOLDER and not installed: the package would start a server. Chromium is installed where
# it is missing, which needs root. What cannot be had is said on stderr, and the tests that need it are skipped; with
# what could be had, EVENTRAIN_REQUIRE makes the tests fail, and not be skipped, where it is not found after all.
set -uo pipefail

folder=$(mkdir -p "$1" && cd "$1" && pwd)
limit_s=300
got=()

say() { echo "test_tools: $*" >&2; }

updated=no
update() {
    [ "$updated" = yes ] && return 0
    timeout "$limit_s" apt-get update -qq >&2 && updated=yes
}

prometheus() {
    if type -P prometheus >/dev/null && type -P promtool >/dev/null; then
        dirname "$(type -P promtool)"
    elif [ -x "$folder/usr/bin/promtool" ]; then
        echo "$folder/usr/bin"
    elif command -v apt-get >/dev/null && update &&
        (cd "$folder" && timeout "$limit_s" apt-get download -qq prometheus >&2 && dpkg -x prometheus_*.deb . && rm prometheus_*.deb); then
        echo "$folder/usr/bin"
    else
        return 1
    fi
}

chromium() {
    type -P chromium >/dev/null && return 0
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && update &&
        DEBIAN_FRONTEND=noninteractive timeout "$limit_s" apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >&2
}

if place=$(prometheus); then
    echo "export EVENTRAIN_PROMETHEUS_DIR='$place'"
    got+=(prometheus)
else
    say "no Prometheus: no Debian package of it can be had here"
fi
if chromium; then
    got+=(chromium)
else
    say "no Chromium: it is not installed, and cannot be by this user"
fi
echo "export EVENTRAIN_REQUIRE='${got[*]:-}'"
