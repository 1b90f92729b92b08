# The sample job of `make run`: read by a shell inside a machine made for it.
echo "Hello from $(hostname), a machine that did not exist a moment ago."
echo "  kernel    $(uname -sr)"
echo "  user      $(id -un) ($(id -u))"
echo "  memory    $(awk '/MemTotal/ { print int($2 / 1024) " MiB" }' /proc/meminfo)"
