package keep

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source/read"
)

// A full disk leaves half a line in the index. What comes after it is not lost.
func TestUnwritableIndexLosesNothingLater(t *testing.T) {
	st := New(t.TempDir(), slog.New(slog.DiscardHandler))
	keep := func(name, text string) {
		v := &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text)}
		st.Put(map[string]Entry{name: {Record: Record{v.ID, time.Now(), time.Now()}, Version: v}})
		st.settle()
	}
	keep("a.toml", "a 1\n")
	checked(t, os.Rename(st.index.path, st.index.path+".away"))
	checked(t, os.Symlink("/dev/full", st.index.path))
	keep("a.toml", "a 2\n")
	if st.WriteError() == "" {
		t.Fatal("writing to a full disk succeeded")
	}
	if r := st.known["a.toml"]; r.Sum != read.IDOf([]byte("a 1\n"), nil) {
		t.Error("a record counts that could not be written")
	}
	checked(t, os.Rename(st.index.path+".away", st.index.path))
	f, err := os.OpenFile(st.index.path, os.O_WRONLY|os.O_APPEND, 0)
	checked(t, err)
	_, err = f.WriteString("5d2b91c3 9f86d0")
	checked(t, err)
	checked(t, f.Close())
	keep("b.toml", "b 1\n")
	st.settle()

	again := New(st.stateDir(), st.log)
	again.Load()
	for name, text := range map[string]string{"a.toml": "a 2\n", "b.toml": "b 1\n"} {
		if r := again.known[name]; r.Sum != read.IDOf([]byte(text), nil) {
			t.Errorf("%s is not recorded as %q", name, text)
		} else if data, err := again.Read(name, r); err != nil || string(data) != text {
			t.Errorf("the copy of %s: %q, %v", name, data, err)
		}
	}
	if st.WriteError() != "" || again.indexDamaged {
		t.Errorf("after it was repaired: trouble %q, index damaged %v", st.WriteError(), again.indexDamaged)
	}
}

// The index does not grow forever, and its size is that of what counts after a start.
func TestIndexIsCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		start := func() (st *Store, stop func()) {
			st = New(dir, slog.New(slog.DiscardHandler))
			st.Load()
			ctx, cancel := context.WithCancel(t.Context())
			go st.Run(ctx)
			return st, func() { cancel(); synctest.Wait() }
		}
		lines := func() int {
			data, err := os.ReadFile(dir + "/lastgood/index")
			checked(t, err)
			_, lines, damaged := parseIndex(data)
			if damaged != 0 {
				t.Errorf("%d lines are damaged", damaged)
			}
			return lines
		}
		st, stop := start()
		put := func(n int) {
			data := fmt.Appendf(nil, "a %d\n", n)
			v := &read.Version{ID: read.IDOf(data, nil), Data: data}
			st.Put(map[string]Entry{"a.toml": {Record: Record{v.ID, time.Now(), time.Now()}, Version: v}})
			synctest.Wait() // until it is written
		}
		for n := range indexSlack + 3 {
			put(n)
		}
		if got := lines(); got != indexSlack+3 {
			t.Errorf("%d lines; want %d", got, indexSlack+3)
		}
		for _, want := range []int{1, 2} {
			st.Maintain(1)
			synctest.Wait()
			if got := lines(); got != want {
				t.Errorf("%d lines; want %d", got, want)
			}
			put(9999 + want)
		}
		stop()
		st, stop = start()
		st.Tidy(func(string) ([]byte, bool) { return nil, false })
		synctest.Wait()
		stop()
		if got := lines(); got != 1 {
			t.Errorf("%d lines after a start; want 1", got)
		}
	})
}

// What is to be kept of the directory is written at the latest when the store ends, however soon, and
// however many files are to be kept with it.
func TestDirectoryIsKeptAtTheEnd(t *testing.T) {
	st := New(t.TempDir(), slog.New(slog.DiscardHandler))
	entries := map[string]Entry{}
	for i := range 2*batch + 1 {
		data := fmt.Appendf(nil, "a %d\n", i)
		v := &read.Version{ID: sha256.Sum256(data), Data: data}
		entries[fmt.Sprintf("%d.toml", i)] = Entry{Record: Record{Sum: v.ID}, Version: v}
	}
	st.Put(entries)
	st.PutDirectory([]byte("1 2 3\n"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	st.Run(ctx)
	if got, err := os.ReadFile(DirectoryPath(st.stateDir())); err != nil || string(got) != "1 2 3\n" {
		t.Errorf("kept %q, %v", got, err)
	}
	if got := len(st.Names()); got != len(entries) {
		t.Errorf("%d of %d files are kept", got, len(entries))
	}
}
