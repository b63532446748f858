#!/bin/sh
# Starts HAProxy for Serve, as its binary: cluster/haproxy_on_loopback.sh -db -f FILE ...
#
# Serve's configuration opens HAProxy's counters on all interfaces and has no setting for it: here they get 127.0.0.1.
# RAYINFER_HAPROXY is the binary itself. RAYINFER_HAPROXY_HOST, if set, is the address that clients are let in at; Serve
# is given 127.0.0.1 then, as it would have its routers listen on the address of clients, too.
set -eu
config=$3
sed -i -e '/^frontend prometheus/,/^frontend http_frontend/ s/^\( *bind \):/\1127.0.0.1:/' \
    -e '/^listen stats/,$ s/^\( *bind \)\*:/\1127.0.0.1:/' "$config"
# Routers take a client's address from this header, as every connection of theirs comes from here: no client names another.
sed -i -e '/^frontend http_frontend/a\    http-request set-header X-Forwarded-For %[src]' \
    -e '/^frontend http_frontend/a\    http-request del-header X-Forwarded-Proto' "$config"
if [ -n "${RAYINFER_HAPROXY_HOST:-}" ]; then
    sed -i "/^frontend http_frontend/,/^backend/ s/^\( *bind \)127\.0\.0\.1:/\1$RAYINFER_HAPROXY_HOST:/" "$config"
fi
exec "$RAYINFER_HAPROXY" "$@"
