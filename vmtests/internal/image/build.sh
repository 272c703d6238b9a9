#!/bin/sh
# Makes the kernel, the modules to begin with, and the root file system of guests:
#
#	build.sh DIRECTORY KERNEL-PACKAGE PACKAGE,PACKAGE...
#
# mmdebstrap calls it a second time, with the root that it has made: --customize DIRECTORY KERNEL-PACKAGE ROOT.
set -eu

suite=bookworm

# What it takes to mount the root, and to talk to the host.
first_modules='virtio_pci virtio_blk squashfs overlay ext4 virtio_console virtio_net'

# Units that wait for devices which a guest does not have, or do what a test has no use for.
useless='apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
	getty.target getty@tty1.service serial-getty@ttyS0.service systemd-ask-password-wall.path systemd-logind.service
	systemd-timesyncd.service systemd-user-sessions.service ipvsadm.service remote-fs.target
	dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount
	modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service modprobe@efi_pstore.service
	modprobe@fuse.service modprobe@loop.service systemd-pcrphase.service systemd-pcrphase-sysinit.service
	systemd-random-seed.service systemd-update-utmp.service'

# add_kernel downloads with the root's apt, so that kernel and root are of one suite.
add_kernel() (
	export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
	kernel=$(apt-cache depends "$2" | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p')
	cd "$3"
	apt-get -qq download "$kernel"
	mkdir kernel modules
	dpkg-deb -x "$kernel"_*.deb kernel
	mv kernel/boot/vmlinuz-* vmlinuz
	version=$(ls kernel/lib/modules)
	mv kernel/lib/modules "$1/usr/lib/modules"
	depmod -b "$1" "$version"
	n=10 # in front of each name, to keep the order
	for m in $first_modules; do
		modprobe -d "$1" -S "$version" --show-depends "$m"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r path; do
		cp "$path" "modules/$n-$(basename "$path")"
		n=$((n + 1))
	done
	rm -r kernel "$kernel"_*.deb
)

trim() {
	# shellcheck disable=SC2086 # a list of names
	systemctl --root="$1" mask $useless
	systemctl --root="$1" set-default multi-user.target
	: >"$1/etc/machine-id"
	rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/usr/lib/udev/hwdb.d "$1"/boot/*
}

if [ "$1" = --customize ]; then
	add_kernel "$4" "$3" "$2"
	trim "$4"
	exit
fi

mkdir "$1"
mmdebstrap --quiet --variant=minbase --format=tar --include="$3" \
	--aptopt='APT::Install-Recommends "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--dpkgopt='path-include=/usr/share/doc/keepalived*' \
	--customize-hook="'$0' --customize '$1' '$2' \"\$1\"" \
	"$suite" "$1/root.tar"
mksquashfs - "$1/root.squashfs" -tar -comp lz4 -quiet -no-progress <"$1/root.tar"
rm "$1/root.tar"
