//go:build bench

package bench

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	tables "svcproxy.dev/svcproxy/netutil/nft"
)

// rest is how long after a start memory is at rest: what it took is given back by then.
const rest = 45 * time.Second

// TestStart shows how long svcproxy takes from the start of its process until it is ready, with nothing in the kernel and with
// everything there already, beside how long the kernel alone takes for the same elements: by the clock and, in brackets, of a
// processor, which a busy machine changes less. They are measured by turns.
func TestStart(t *testing.T) {
	logMachine(t)
	for _, count := range []int{services, many} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			d, err := newDaemon(t, nftables, makeServices(count))
			if err != nil {
				t.Fatal(err)
			}
			var kernel, cold, warm spans
			for range loads {
				elements, err := d.node.elements()
				if err != nil {
					t.Fatal(err)
				}
				before, err := netnstest.UsageOf(os.Getpid())
				if err != nil {
					t.Fatal(err)
				}
				took, err := d.node.fillCopy(elements)
				if err == nil {
					err = kernel.add(took, os.Getpid(), before.Processor)
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Stop(); err != nil {
					t.Fatal(err)
				}
				if err := d.runInto(&warm); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(d.Stop(), d.node.deleteTables(), d.Forget()); err != nil {
					t.Fatal(err)
				}
				if err := d.runInto(&cold); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(rest)
			now, peak, err := d.resident()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("the kernel alone: %s", kernel)
			t.Logf("nothing in the kernel: %s, %s times the kernel's", cold, cold.by(kernel))
			t.Logf("everything there: %s, %s times the kernel's", warm, warm.by(kernel))
			t.Logf("%d MiB at rest, %d at the peak", now, peak)
		})
	}
	logMachine(t)
}

// spans are what several runs took, by the clock and of a processor.
type spans struct{ clock, processor []time.Duration }

// add adds a run of a process, whose processor time was before at its beginning.
func (l *spans) add(took time.Duration, pid int, before time.Duration) error {
	u, err := netnstest.UsageOf(pid)
	l.clock, l.processor = append(l.clock, took), append(l.processor, u.Processor-before)
	return err
}

func (l spans) String() string { return fmt.Sprintf("%s (%s)", show(l.clock), show(l.processor)) }

// by returns how many times as long as others runs took.
func (l spans) by(o spans) string {
	ratio := func(a, b []time.Duration) float64 { return median(a).Seconds() / median(b).Seconds() }
	return fmt.Sprintf("%.2f (%.2f)", ratio(l.clock, o.clock), ratio(l.processor, o.processor))
}

// runInto is run, and adds how long it took.
func (d *daemon) runInto(l *spans) error {
	if err := d.run(); err != nil {
		return err
	}
	return l.add(d.ready, d.Pid(), 0)
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
