// Package vmtests holds tests that need a kernel of their own: virtual machines
// under QEMU, with Debian's kernel and root file system. They carry the build tag
// vm, and run by
//
//	make test-vm        (Debian packages: qemu-system-x86 mmdebstrap squashfs-tools kmod e2fsprogs)
//
// There are two kinds of guests, from one image. In the first, the tests of a
// package run as root and alone: those of every package that has tests with the
// tag vm, because they need IPVS or change what a host has once, and those of
// kernelPackages, which any kernel must pass. In the second, systemd is process 1 and
// svcproxy is installed as on any host; several of them share a network.
//
// Of the first kind, a test or a group of the lab's cases that fails is run once
// more, in a guest of its own, and what it said is printed; more than two fail. The
// last lines of make test-vm, passing or not, count these second tries and name them.
//
// Those who have Vagrant can take the steps of the second kind in its machines:
//
//	make test-vagrant   (a box of Debian 12 is downloaded)
//
// # By hand
//
// One test binary in a guest, with its output and its exit code:
//
//	CGO_ENABLED=0 go test -c -tags netns,vm -o ipvs.test ./proxier/ipvs
//	go run ./vmtests/cmd/guest -- ./ipvs.test -test.v -test.run Drain
//
// A case of the packet lab, which brings the program along:
//
//	make build && CGO_ENABLED=0 go test -c -tags netns -o lab.test ./test/lab
//	go run ./vmtests/cmd/guest -file bin/svcproxy -env SVCPROXY_LAB_BINARY=/root/svcproxy -- ./lab.test -test.v -test.run TestCases/nftables/addresses
//
// Any program of the guest, to look around:
//
//	go run ./vmtests/cmd/guest -- sh -c 'uname -a; modprobe ip_vs; ipvsadm -Ln'
//
// # Environment
//
// SVCPROXY_VM_CACHE is the folder of images (default: svcproxy-vm in the user's
// cache folder). An image takes one to two minutes to make and 130 MB; it is made
// again when what goes into it changes. Old ones may be deleted at any time.
//
// SVCPROXY_VM_ACCEL is QEMU's accelerator. The default, tcg, emulates the
// processor: it works on every host, also one that is a guest itself. There a
// system call takes some ten times as long as on the host, a new process up to
// fifty times; plain computing is about as fast. Compare times only with others of the
// same guest. With kvm all is fast where kvm works.
package vmtests
