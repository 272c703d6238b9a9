// Package l2 announces addresses of this host on Ethernet links: who has such an address in
// its neighbour cache with another host's link-layer address, sends to this host from then on.
//
// # What is sent
//
// IPv4: two gratuitous ARP packets, both broadcast. One is a request (RFC 5227, section 3),
// the other a reply (RFC 5944, section 4.6): there are devices that ignore the one, and
// devices that ignore the other. IPv6: one unsolicited neighbour advertisement to all nodes
// of the link, with the override flag (RFC 4861, section 7.2.6), and with the router flag
// where this host is a router: without it, neighbours would give up their routes through it.
//
// An address is announced three times: at once, 1.1 s and 3.3 s later; again when the link comes
// up, and when the address moves to another link or the link gets another link-layer address.
// Three is what RFC 4861 allows, at most one a second; RFC 5227 has two, two seconds apart. It is
// more than a second because Linux before 4.11 leaves an entry as it is that has changed in the
// last second (locktime), and the second attempt would be lost too. Together at most 200
// announcements are made a second: a switch may drop more ARP than that, or close the port.
//
// # Where
//
// Only where the kernel answers when neighbours ask for the address. Else those that have no
// entry would never reach it, and those that have one would lose it when they check it.
//
//   - An address of an Ethernet link, or of what looks like one (bond, VLAN, bridge): on that link,
//     while it is up and has a carrier. An IPv6 address waits for duplicate address detection.
//   - An IPv4 address that is local to this host without that (on lo, on a dummy device, by a
//     local route): on every link whose network contains it, unless arp_ignore keeps the kernel
//     from answering there.
//   - An IPv6 address of lo or of a dummy device: nowhere. The kernel answers for it on no link.
//   - An address that this host does not have: nowhere.
//
// Results has the reason of each that is not announced. Nothing is withdrawn when an address
// goes: there is no packet for that.
//
// # Rights
//
// It takes CAP_NET_RAW, and a unit of systemd that restricts address families has to allow
// AF_PACKET for IPv4, and AF_INET6 for IPv6. Results say what is missing.
//
// File map: announcer.go when, with entry.go; attachments.go where, of what host.go reads;
// packets.go what; send.go by which socket.
package l2
