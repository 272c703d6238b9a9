//go:build bench

package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

// A variant is a kernel interface: one of the two that iptables speaks, nftables
// itself, or IPVS, beside iptables-nft.
type variant string

const (
	legacy   variant = "legacy"
	nft      variant = "nft"
	nftables variant = "nftables"
	ipvs     variant = "ipvs" // in guests only
)

// tables names whose tables the variant changes.
func (v variant) tables() string {
	if v == nftables || v == ipvs {
		return string(v)
	}
	return "iptables-" + string(v)
}

// mode is the mode of svcproxy that uses the interface.
func (v variant) mode() string {
	if v == nftables || v == ipvs {
		return string(v)
	}
	return "iptables"
}

// tool names the programs of iptables that others use beside the variant, in a family.
func (v variant) tool(family string) string {
	if v == ipvs {
		v = nft
	}
	return family + "-" + string(v)
}

// A node is the node of a lab of its own, whose first local host answers for all endpoints.
type node struct {
	*lab.Lab
	variant variant
	dir     string // for what is measured here; removed with the node
}

// newNode makes a node that is removed with the test.
func newNode(t *testing.T, v variant) (*node, error) {
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	n := &node{Lab: l, variant: v}
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), os.RemoveAll(n.dir)); err != nil {
			t.Error(err)
		}
	})
	if n.dir, err = netnstest.TempDir(); err != nil {
		return nil, err
	}
	if v == ipvs {
		if err := lab.PrepareIPVS(n.Node); err != nil {
			return nil, err
		}
	}
	return n, errors.Join(n.addForeignRules(), n.routeEndpoints())
}

// addForeignRules adds rules that match everything and do nothing: svcproxy stays
// with the variant in which others have rules.
func (n *node) addForeignRules() error {
	if n.variant == nftables {
		return nil
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		if _, err := n.Node.Run(n.variant.tool(family), "-w", "-A", "INPUT", "-m", "comment", "--comment", "of another program"); err != nil {
			return err
		}
	}
	return nil
}

// routeEndpoints makes the first local host, whose servers listen on all of its
// addresses, own every address that an endpoint may have.
func (n *node) routeEndpoints() error {
	host, all := n.Local[0], endpointRange.String()
	if _, err := host.Run("ip", "route", "add", "local", all, "dev", "lo"); err != nil {
		return err
	}
	_, err := n.Node.Run("ip", "route", "add", all, "via", host.Addr().V4.String(), "dev", host.Role)
	return err
}

// load returns how long a tool takes for rules on its standard input, from the start of the process to its end.
func (n *node) load(rules []byte, tool string, flags ...string) (time.Duration, error) {
	input := filepath.Join(n.dir, "rules") // a file costs the process less than a pipe
	if err := os.WriteFile(input, rules, 0o644); err != nil {
		return 0, err
	}
	file, err := os.Open(input)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	ctx, cancel := pace.Context(netnstest.CommandTimeout)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, tool, flags...)
	cmd.Stdin, cmd.Stderr = file, &stderr
	start := time.Now()
	if err := n.Node.Start(cmd); err != nil {
		return 0, err
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return time.Since(start), nil
}

// restore is load with iptables-restore.
func (n *node) restore(rules []byte, flags ...string) (time.Duration, error) {
	return n.load(rules, fmt.Sprintf("iptables-%s-restore", n.variant), flags...)
}

// loadKube loads services in kube-proxy's layout, with the tool and flags of kube-proxy.
func (n *node) loadKube(all []lab.Service) (took time.Duration, err error) {
	if n.variant == nftables {
		took, err = n.load(kubeTable(all), "nft", "-f", "-")
	} else {
		took, err = n.restore(kubeRules(all), "-w", "5", "--noflush", "--counters")
	}
	if err != nil {
		return 0, fmt.Errorf("loading %d services in kube-proxy's layout: %w", len(all), err)
	}
	return took, nil
}

// restoreOneRule flushes and refills a chain of one rule.
func (n *node) restoreOneRule(comment string) (time.Duration, error) {
	rules := "*nat\n:ONE-RULE - [0:0]\n-A ONE-RULE -m comment --comment " + comment + " -j RETURN\nCOMMIT\n"
	took, err := n.restore([]byte(rules), "-w", "5", "--noflush")
	if err != nil {
		return 0, fmt.Errorf("changing one rule: %w", err)
	}
	return took, nil
}

// natRules returns the rules of the nat table.
func (n *node) natRules() (string, error) {
	return n.Node.Run(fmt.Sprintf("iptables-%s-save", n.variant), "-t", "nat")
}
