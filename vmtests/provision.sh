#!/bin/sh
# Provisions a machine of Vagrant: provision.sh node|client|backend. The second network card is the site's.
set -eu
role=$1
cd /svcproxy
install -m 0755 bin/peer /usr/bin/peer
sh vmtests/setup.sh "$role" eth1
serve() { # NAME IPV4 IPV6
	systemd-run --unit="peer-$1" --property=Restart=always peer serve "$1" "$2:8080" "[$3]:8080"
}
case $role in
node)
	apt-get -qq update
	DEBIAN_FRONTEND=noninteractive apt-get -qq -y install make iptables nftables ipset ipvsadm conntrack
	make -o build install # built on the host
	[ -e /etc/svcproxy/web.toml ] || install -m 0644 vmtests/web.toml /etc/svcproxy/web.toml
	systemctl daemon-reload
	systemctl restart systemd-modules-load systemd-sysctl # as the next boot would
	systemctl enable --now svcproxy
	;;
backend)
	serve one 192.168.7.3 fd07::3
	serve two 192.168.7.4 fd07::4
	;;
esac
