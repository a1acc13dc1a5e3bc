#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# machine.sh PROGRAM [ARGUMENTS]: runs it in a virtual machine that has the kernel's own RDMA stack.
#
# QEMU emulates the machine, so no KVM and no root is needed. Its kernel is Debian's, fetched once as
# a package and only unpacked. In it, SoftRoCE ports rxe0 and rxe1 stand on the two ends of a veth,
# f0 (10.0.0.1) and f1 (10.0.0.2). Exit code: the program's; 77 if something is not here.
set -euo pipefail
program=$1
shift
cache=${XDG_CACHE_HOME:-$HOME/.cache}/deft-vm
lib=/usr/lib/$(uname -m)-linux-gnu
missing=()
for tool in qemu-system-x86_64 busybox modprobe depmod cpio ip tc rdma; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || missing+=("$tool")
done
ls "$lib"/libibverbs/librxe-rdmav*.so >/dev/null 2>&1 || missing+=('the provider of SoftRoCE (ibverbs-providers)')
if [ ${#missing[@]} -gt 0 ]; then
    printf 'skipped: missing here: %s; ./dev install qemu-system-x86 busybox-static kmod cpio iproute2 ibverbs-providers\n' "${missing[*]}"
    exit 77
fi
PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch_kernel() {
    local package
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}')
    [ -n "$package" ] && (cd "$work" && apt-get download -q "$package" && dpkg -x "$package"_*.deb "$cache") >/dev/null 2>&1
}
mkdir -p "$cache"
if ! ls "$cache"/boot/vmlinuz-* >/dev/null 2>&1 && ! fetch_kernel; then
    echo 'skipped: the package of a kernel (linux-image-amd64) could not be fetched'
    exit 77
fi
kernel=$(find "$cache/boot" -name 'vmlinuz-*' | sort -V | tail -n 1)
version=${kernel##*/vmlinuz-}
[ -e "$cache/lib/modules/$version/modules.dep" ] || depmod -b "$cache" "$version"

root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp,modules,etc/libibverbs.d} "$root$lib/libibverbs"
# add PLACE FILE: a program or library with everything that it links.
add() {
    cp -L "$2" "$root$1"
    ldd "$2" | awk '{for (i = 1; i <= NF; i++) if ($i ~ /^\//) print $i}' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        [ -e "$root$library" ] || cp -L "$library" "$root$library"
    done
}
cp -L "$(command -v busybox)" "$root/bin/busybox"
for applet in sh mount insmod cat echo poweroff; do ln -s busybox "$root/bin/$applet"; done
for tool in ip tc rdma; do add "/bin/$tool" "$(command -v "$tool")"; done
add /bin/program "$program"
# What the program opens by its name.
add "$lib/libibverbs.so.1" "$lib/libibverbs.so.1"
for provider in "$lib"/libibverbs/librxe-rdmav*.so; do add "$provider" "$provider"; done
echo 'driver rxe' >"$root/etc/libibverbs.d/rxe.driver"
for module in crc32_generic crc32_pclmul veth sch_netem rdma_rxe ib_uverbs; do
    modprobe -d "$cache" -S "$version" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
done | awk '!seen[$0]++' >"$work/modules"
while read -r module; do
    cp "$module" "$root/modules/"
    basename "$module"
done <"$work/modules" >"$root/modules/order"
printf '%q ' /bin/program "$@" >"$root/command"
# By their paths: busybox's shell prefers its own applets.
cat >"$root/init" <<'INIT'
#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod "/modules/$module" || echo "cannot load $module"; done
/bin/ip link set lo up
/bin/ip link add f0 type veth peer name f1
/bin/ip addr add 10.0.0.1/24 dev f0; /bin/ip addr add 10.0.0.2/24 dev f1
# Both ends are this machine's: packets from an address of its own, and questions for one, are to be taken.
for end in all f0 f1; do
    echo 1 >"/proc/sys/net/ipv4/conf/$end/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/$end/rp_filter"
done
/bin/ip link set f0 up; /bin/ip link set f1 up
/bin/rdma link add rxe0 type rxe netdev f0; /bin/rdma link add rxe1 type rxe netdev f1
ulimit -l unlimited
sh /command; echo "program-exit-status $?"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd.gz"
qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nographic -no-reboot -net none \
    -kernel "$kernel" -initrd "$work/initrd.gz" -append 'console=ttyS0 quiet panic=-1' </dev/null |
    tr -d '\r' | tee "$work/console" | sed '/^program-exit-status /d'
exit "$(awk '/^program-exit-status / {status = $2} END {print status == "" ? 70 : status}' "$work/console")"
