package lab

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// A Network is some hosts and the servers on them. A Lab is one whose hosts have their parts;
// tests that need another shape make it from Host, Link and the ip command of its hosts.
type Network struct {
	name    string
	servers echotest.Servers

	mu   sync.Mutex
	made []*Host

	expected sync.Map // text of a one-way datagram to a chan string that gets the server which received it
}

// NewNetwork returns a network without hosts. Close removes what is made in it.
func NewNetwork() *Network {
	n := &Network{name: netnstest.UniqueName()}
	n.servers.Heard = n.heard
	return n
}

// Host makes a host, a namespace that is named by its role and has nothing but its loopback.
// Its first address is what others know it by.
func (n *Network) Host(role string, addrs ...Dual) (*Host, error) {
	ns, err := netnstest.New(n.name + "-" + role)
	if err != nil {
		return nil, err
	}
	h := &Host{Namespace: ns, Role: role, Addrs: addrs}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made = append(n.made, h)
	return h, nil
}

// Serve starts a TCP and a UDP server on h, which say that they are h.
func (n *Network) Serve(h *Host, at netip.AddrPort) error {
	return h.Do(func() error { return n.servers.Serve(h.Role, at) })
}

// heard tells who waits for a datagram that has no answer.
func (n *Network) heard(answer []byte) {
	who, text, _ := bytes.Cut(answer, []byte("\n"))
	if got, ok := n.expected.LoadAndDelete(string(text)); ok {
		got.(chan string) <- string(who)
	}
}

// Close ends all servers and removes all hosts.
func (n *Network) Close() error {
	n.servers.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, h := range n.made {
		errs = append(errs, h.Close())
	}
	n.made = nil
	return errors.Join(errs...)
}

// hosts returns the hosts that have been made.
func (n *Network) hosts() []*Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.made)
}
