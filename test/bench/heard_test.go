//go:build bench

package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	nftlib "github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/test/lab"
)

// A listener hears of changes of nf_tables on a node, as any other program may.
type listener struct{ conn *netlink.Conn }

func listenOn(t *testing.T, n *node) (l listener, err error) {
	err = n.Node.Do(func() error {
		if l.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return err
		}
		return l.conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	})
	if l.conn != nil {
		t.Cleanup(func() { l.conn.Close() })
	}
	return l, err
}

// after returns how long after the start that change returns an element was heard of. The listener waits before the
// change begins, so that it has to be woken by every change.
func (l listener) after(change func() (time.Time, error)) (took time.Duration, err error) {
	if err := l.conn.SetReadDeadline(time.Now().Add(changePatience)); err != nil {
		return 0, err
	}
	var start time.Time
	changed := make(chan error, 1)
	go func() {
		time.Sleep(5 * time.Millisecond)
		var err error
		if start, err = change(); err != nil {
			_ = l.conn.SetReadDeadline(time.Now()) // nothing will come
		}
		changed <- err
	}()
	for {
		messages, err := l.conn.Receive()
		now := time.Now()
		if err != nil {
			return 0, fmt.Errorf("waiting for an element: %w", errors.Join(<-changed, err))
		}
		const added = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM)
		if slices.ContainsFunc(messages, func(m netlink.Message) bool { return m.Header.Type == added }) {
			err := errors.Join(<-changed, l.drain())
			return now.Sub(start), err
		}
	}
}

// drain reads until nothing has come for a while.
func (l listener) drain() error {
	for {
		if err := l.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			return err
		}
		_, err := l.conn.Receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
	}
}

// A writer changes elements of a map of its own, with a message for each and nothing else.
type writer struct {
	conn *nftlib.Conn
	set  *nftlib.Set
}

func newWriter(t *testing.T, n *node, elements int) (w writer, err error) {
	err = n.Node.Do(func() error {
		w.conn, err = nftlib.New(nftlib.AsLasting())
		return err
	})
	if err != nil {
		return w, err
	}
	t.Cleanup(func() { w.conn.CloseLasting() })
	table := w.conn.AddTable(&nftlib.Table{Family: nftlib.TableFamilyINet, Name: "neighbour"})
	w.set = &nftlib.Set{Table: table, Name: "elements", IsMap: true, KeyType: nftlib.TypeIPAddr, DataType: nftlib.TypeIPAddr}
	if err := w.conn.AddSet(w.set, nil); err != nil {
		return w, err
	}
	var all []nftlib.SetElement
	for i := range elements {
		all = append(all, element(i, 0))
	}
	const atOnce = 500 // in a message of less than 64 KiB
	for part := range slices.Chunk(all, atOnce) {
		if err := errors.Join(w.conn.SetAddElements(w.set, part), w.conn.Flush()); err != nil {
			return w, err
		}
	}
	return w, w.conn.Flush()
}

// element is the i-th one, with its n-th value.
func element(i, n int) nftlib.SetElement {
	return nftlib.SetElement{Key: offset(netip.IPv4Unspecified(), i).AsSlice(), Val: offset(netip.IPv4Unspecified(), n).AsSlice()}
}

// change gives the first element another value.
func (w writer) change(n int) (start time.Time, err error) {
	start = time.Now()
	err = errors.Join(
		w.conn.SetDeleteElements(w.set, []nftlib.SetElement{element(0, n-1)}),
		w.conn.SetAddElements(w.set, []nftlib.SetElement{element(0, n)}),
		w.conn.Flush(),
	)
	return start, err
}

// TestHeard measures what a change of one service in a file of 100 takes from the rename of the file until another
// program hears of the element, by turns with a program that writes an element and does nothing else.
func TestHeard(t *testing.T) {
	logMachine(t)
	all := makeServices(services)
	d, err := newDaemon(t, nftables, all)
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWriter(t, d.node, services)
	if err != nil {
		t.Fatal(err)
	}
	l, err := listenOn(t, d.node)
	if err != nil {
		t.Fatal(err)
	}
	var files, bare []time.Duration
	for i := range 5 * changes {
		all[len(all)-1].Endpoints[0].Address = offset(spare, i)
		took, err := l.after(func() (time.Time, error) { return d.rewrite(all, len(all)-1) })
		if err != nil {
			t.Fatalf("%v\n%s", err, d.LogTail(logLines))
		}
		files = append(files, took)
		if took, err = l.after(func() (time.Time, error) { return w.change(1 + i) }); err != nil {
			t.Fatal(err)
		}
		bare = append(bare, took)
	}
	slices.Sort(files)
	slices.Sort(bare)
	t.Logf("%d services, svcproxy, from the rename of a file: p99 %v, median %s", services, round(quantile(files, 99)), show(files))
	t.Logf("a bare writer, from its message: p99 %v, median %s", round(quantile(bare, 99)), show(bare))
	t.Logf("the ratio: median %.1f, p99 %.1f", median(files).Seconds()/median(bare).Seconds(),
		quantile(files, 99).Seconds()/quantile(bare, 99).Seconds())
	logMachine(t)
}

// rewrite renames the file of the i-th service to its place, and returns when it began to.
func (d *daemon) rewrite(all []lab.Service, i int) (start time.Time, err error) {
	from := i / perFile * perFile
	text, err := lab.File(all[from:min(from+perFile, len(all))]...)
	if err != nil {
		return start, err
	}
	place, err := d.Stage(fileName(i), text)
	if err != nil {
		return start, err
	}
	start = time.Now()
	return start, place()
}
