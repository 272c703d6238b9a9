#!/bin/sh
# Makes a machine one of the three of a site, client -> node -> backend, on one network:
#
#	setup.sh node|client|backend DEVICE
#
# The tests run it in their guests, and Vagrant in its machines.
set -eu
role=$1
device=$2

addresses() {
	ip link set lo up
	ip link set "$device" up
	for a in "$@"; do
		case $a in
		*:*) ip address replace "$a" dev "$device" nodad ;;
		*) ip address replace "$a" dev "$device" ;;
		esac
	done
}

case $role in
node)
	addresses 192.168.7.1/24 fd07::1/64
	# Local clients of a VIP need any route that covers it.
	ip route replace 10.96.0.0/16 dev lo
	ip route replace fd00:96::/64 dev lo
	;;
client)
	addresses 192.168.7.2/24 fd07::2/64
	ip route replace 10.96.0.0/16 via 192.168.7.1
	ip route replace fd00:96::/64 via fd07::1
	;;
backend)
	addresses 192.168.7.3/24 fd07::3/64 192.168.7.4/24 fd07::4/64
	;;
esac
