//go:build bench

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ti-mo/conntrack"

	"svcproxy.dev/svcproxy/test/lab"
)

// Sources and destinations of what fills tables. None is a host's or a service's.
var (
	strangers = netip.MustParseAddr("100.64.0.1")  // forged clients
	talkers   = netip.MustParseAddr("100.96.0.1")  // of connection tracking
	resolver  = netip.MustParseAddr("203.0.113.1") // they talk to it
)

// track adds entries to connection tracking of the node, half TCP and half UDP,
// that have nothing to do with services.
func (n *node) track(count int) error {
	var c *conntrack.Conn
	err := n.Node.Do(func() (err error) {
		c, err = conntrack.Dial(nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("opening connection tracking: %w", err)
	}
	defer c.Close()
	for i := range count {
		const udp, tcp, timeout = 17, 6, 3600
		f := conntrack.NewFlow(udp, conntrack.StatusConfirmed|conntrack.StatusSeenReply|conntrack.StatusAssured, offset(talkers, i/8), resolver, uint16(1024+i%8), 53, timeout, 0)
		if i%2 == 0 {
			f.TupleOrig.Proto.Protocol, f.TupleReply.Proto.Protocol = tcp, tcp
			f.ProtoInfo.TCP = &conntrack.ProtoInfoTCP{State: 3} // established
		}
		if err := c.Create(f); err != nil {
			return fmt.Errorf("tracking connection %d: %w", i, err)
		}
	}
	return nil
}

// Timeouts of connection tracking while clients are forged, so that it does not
// fill up, and what they are otherwise, in seconds.
var (
	shortly = []string{"net.netfilter.nf_conntrack_tcp_timeout_syn_sent=1", "net.netfilter.nf_conntrack_tcp_timeout_syn_recv=1"}
	usually = []string{"net.netfilter.nf_conntrack_tcp_timeout_syn_sent=120", "net.netfilter.nf_conntrack_tcp_timeout_syn_recv=60"}
)

// visit makes count clients, which nobody is, come to a service once each, at
// most some 20,000 a second. What is answered to them ends at the node.
func (n *node) visit(to netip.AddrPort, count int) error {
	f, err := lab.NewForger(n.Client)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := n.Node.Sysctl(shortly...); err != nil {
		return err
	}
	if _, err := n.Node.Run("ip", "route", "replace", "blackhole", "100.64.0.0/10"); err != nil {
		return err
	}
	for i := range count {
		if err := f.SYN(netip.AddrPortFrom(offset(strangers, i), 1024), to); err != nil {
			return err
		}
		if i%200 == 199 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	if _, err := n.Node.Run("conntrack", "-F"); err != nil {
		return err
	}
	return n.Node.Sysctl(usually...)
}

// background does something again and again until the test ends or stop is
// called, which returns how often.
func background(t *testing.T, every time.Duration, do func(i int) error) (stop func() (times int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	times, done := 0, make(chan error, 1)
	go func() {
		var err error
		for ; err == nil && ctx.Err() == nil; times++ {
			err = do(times)
			time.Sleep(every)
		}
		done <- err
	}()
	ended := false
	stop = func() int {
		if cancel(); !ended {
			ended = true
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		return times
	}
	t.Cleanup(func() { stop() })
	return stop
}

// churn takes an endpoint from the service with affinity, or gives it back.
func (d *daemon) churn(i int) error {
	s := stickyService()
	s.Endpoints = s.Endpoints[i%2:]
	return d.rename("sticky.json", s)
}

// write is one change of foreign rules, by the tool of the variant, and of a foreign virtual server.
func (n *node) write(i int) error {
	if n.variant == nftables {
		script := "add table ip neighbour\nadd chain ip neighbour c\nflush chain ip neighbour c\n" + strings.Repeat("add rule ip neighbour c counter\n", 1+i%3)
		_, err := n.Node.RunInput(script, "nft", "-f", "-")
		return err
	}
	tool := n.variant.tool("iptables")
	rule := []string{"INPUT", "-s", "192.0.2.77", "-j", "ACCEPT"}
	_, err := n.Node.Run(tool, append([]string{"-w", "-A"}, rule...)...)
	if err == nil {
		_, err = n.Node.Run(tool, append([]string{"-w", "-D"}, rule...)...)
	}
	if err == nil && n.variant == ipvs {
		command := []string{"-A -t 203.0.113.9:80 -s rr", "-D -t 203.0.113.9:80"}[i%2]
		_, err = n.Node.RunInput(command+"\n", "ipvsadm", "-R")
	}
	return err
}

// entries returns how many connections the node tracks.
func (n *node) entries() (count int, err error) {
	text, err := n.Node.Run("conntrack", "-C")
	_, err2 := fmt.Sscan(text, &count)
	return count, errors.Join(err, err2)
}
