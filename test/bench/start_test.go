//go:build bench

package bench

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	tables "svcproxy.dev/svcproxy/netutil/nft"
)

// rest is how long after a start memory is at rest: what it took is given back by then.
const rest = 45 * time.Second

// TestStart shows how long svcproxy takes from the start of its process until it is ready, with nothing in the kernel and with
// everything there already, beside how long the kernel alone takes for the same elements. They are measured by turns.
func TestStart(t *testing.T) {
	logMachine(t)
	for _, count := range []int{services, many} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			d, err := newDaemon(t, nftables, makeServices(count))
			if err != nil {
				t.Fatal(err)
			}
			var kernel, cold, warm []time.Duration
			for range loads {
				elements, err := d.node.elements()
				if err != nil {
					t.Fatal(err)
				}
				took, err := d.node.fillCopy(elements)
				if err != nil {
					t.Fatal(err)
				}
				kernel = append(kernel, took)
				if err := errors.Join(d.Stop(), d.run()); err != nil {
					t.Fatal(err)
				}
				warm = append(warm, d.ready)
				if err := errors.Join(d.Stop(), d.node.deleteTables(), d.Forget(), d.run()); err != nil {
					t.Fatal(err)
				}
				cold = append(cold, d.ready)
			}
			time.Sleep(rest)
			now, peak, err := d.resident()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("the kernel alone: %s", show(kernel))
			t.Logf("nothing in the kernel: %s, %.2f times the kernel's", show(cold), median(cold).Seconds()/median(kernel).Seconds())
			t.Logf("everything there: %s, %.2f times the kernel's", show(warm), median(warm).Seconds()/median(kernel).Seconds())
			t.Logf("%d MiB at rest, %d at the peak", now, peak)
		})
	}
	logMachine(t)
}

// ours is the table of IPv4.
var ours = tables.Table{Family: unix.NFPROTO_IPV4, Name: "svcproxy"}

func (n *node) deleteTables() error {
	_, err := n.Node.Run("nft", "delete table ip svcproxy; delete table ip6 svcproxy")
	return err
}

// contents are the sets of a table, its chains, which elements refer to, and elements by set.
type contents struct {
	listing  *tables.Listing
	elements map[string][]tables.Element
}

func (n *node) elements() (c contents, err error) {
	err = n.Node.Do(func() error {
		conn, err := tables.Dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		if c.listing, err = conn.List(ours); err != nil {
			return err
		}
		c.elements = map[string][]tables.Element{}
		for name := range c.listing.Sets {
			err := conn.Scan(ours, name, func(e *tables.Element) error {
				c.elements[name] = append(c.elements[name], tables.Element{Key: clone(e.Key), Data: clone(e.Data), Comment: e.Comment})
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return c, err
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

// pieceBytes is how much of a load is sent at once. The kernel is slower with more: its tables grow beside a transaction,
// and chains of elements get long within one.
const pieceBytes = 1 << 20

// fillCopy returns how long the kernel takes for the same sets and elements in a table of its own, without rules.
func (n *node) fillCopy(c contents) (took time.Duration, err error) {
	table := tables.Table{Family: unix.NFPROTO_IPV4, Name: "copy"}
	err = n.Node.Do(func() error {
		conn, err := tables.Dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		start := time.Now()
		b := tables.NewBatch(table)
		b.AddTable("")
		for name := range maps.Keys(c.listing.Chains) {
			b.AddChain(&tables.Chain{Name: name})
		}
		for _, s := range c.listing.Sets {
			b.AddSet(s)
		}
		for name, list := range c.elements {
			for _, e := range list {
				if b.Len()+e.Size(name) > min(conn.MaxBatch(), pieceBytes) {
					if err := conn.Commit(b); err != nil {
						return err
					}
					b.Reset()
				}
				b.AddElement(name, e)
			}
		}
		if err := conn.Commit(b); err != nil {
			return err
		}
		took = time.Since(start)
		b.Reset()
		b.DeleteTable()
		return conn.Commit(b)
	})
	return took, err
}
