#!/bin/sh
# Records the service of a name for good, from a privileged container (image: docs/containers.md),
# with the options of /etc/tracer/NAME.conf (example: tracer.conf beside this file). Read them again,
# in the same session and without losing a row: docker kill --signal=HUP tracer-NAME
# Usage: tracer-follow.sh NAME [DIRECTORY]
set -eu
name=$1
directory=${2:-/var/lib/tracer}
exec docker run -d --name "tracer-$name" --restart on-failure \
  --privileged --pid=host --network=host --memory 1g \
  -v /sys/kernel/tracing:/sys/kernel/tracing \
  -v /sys/kernel/debug:/sys/kernel/debug \
  -v /sys/fs/cgroup:/sys/fs/cgroup:ro \
  -v /run/tracer:/run/tracer \
  -v /etc/tracer:/etc/tracer:ro \
  -v "$directory":/sessions \
  tracer record --follow "$name" -o "/sessions/$name-$(date +%Y%m%d-%H%M%S).tracer" \
  --config "/etc/tracer/$name.conf" --metrics-port 9465
