package keep

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/read"
)

// settle writes what the store was given, and waits for the disk.
func (st *Store) settle() {
	for st.writeMore() {
	}
	if st.beginSync(); st.syncing != nil {
		st.endSync(<-st.synced)
	}
}

// checked fails the test if there is an error.
func checked(t testing.TB, err error) {
	t.Helper()
	fatal.If(t, err)
}

// A slowStore is one whose disk answers when the test says so.
type slowStore struct {
	*testing.T
	*Store
}

func newSyncing(t *testing.T) slowStore {
	return slowStore{t, New(t.TempDir(), slog.New(slog.DiscardHandler))}
}

// write has a version of x.toml written, or that it was removed where there is no text.
func (s slowStore) write(text string) {
	s.tell(text)
	s.writeMore()
}

// tell says what is accepted, and has nothing written yet.
func (s slowStore) tell(text string) {
	e := Entry{}
	if text != "" {
		e.Version = &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text), Size: len(text)}
		e.Record = Record{e.Version.ID, time.Unix(1, 0), time.Unix(2, 0)}
	}
	s.Put(map[string]Entry{"x.toml": e})
}

// answer has the disk answer what it was asked.
func (s slowStore) answer(err error) {
	end := <-s.synced
	end.err = err
	s.endSync(end)
}

// has fails the test unless these versions have a copy.
func (s slowStore) has(when string, want ...string) {
	s.Helper()
	var got []string
	for _, text := range []string{"1", "2", "3"} {
		if _, err := os.Stat(s.CopyPath("x.toml", read.IDOf([]byte(text), nil))); err == nil {
			got = append(got, text)
		} else if !errors.Is(err, fs.ErrNotExist) {
			s.Error(err)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("%s there are copies of %q; want %q", when, got, want)
	}
}

// wants fails the test unless these versions were accepted.
func (s slowStore) wants(want ...string) {
	s.Helper()
	texts := map[string]string{"": "removed"}
	for _, text := range []string{"1", "2", "3"} {
		texts[read.IDText(read.IDOf([]byte(text), nil))] = text
	}
	var got []string
	for _, r := range s.Store.history.list {
		got = append(got, texts[r.Sum])
	}
	if !slices.Equal(got, want) {
		s.Errorf("the history has %q; want %q", got, want)
	}
}

// What the disk was asked for stays with what it replaces until the disk has it, whatever comes meanwhile.
func TestWrittenWhileSyncing(t *testing.T) {
	s := newSyncing(t)
	s.write("1")
	s.settle()
	s.write("2")
	s.beginSync()
	found, err := os.ReadDir(s.Dir())
	checked(t, err)
	s.write("3")
	s.beginSync()
	if missing := s.removeOrphans(found); missing != nil {
		t.Errorf("%q have no copy", missing)
	}
	s.has("while the disk is asked", "1", "2", "3")
	s.answer(nil)
	s.has("when it has the second", "2", "3")
	if s.OnDisk() {
		t.Error("the third is taken for kept")
	}
	s.settle()
	s.has("when it has the third", "3")
	s.wants("1", "2", "3")
}

// A version that comes back is not dropped as what it once replaced.
func TestSyncingComesBack(t *testing.T) {
	s := newSyncing(t)
	s.write("1")
	s.settle()
	s.write("2")
	s.beginSync()
	s.write("1")
	s.write("3")
	s.answer(nil)
	s.has("when the disk has the second", "1", "2", "3")
	s.settle()
	s.has("when it has the third", "3")
}

// Where a sync fails, nothing goes, and all is written again, once for the history, also where the store is told of another version before that, and then not.
func TestFailedSyncWritesAgain(t *testing.T) {
	for _, tt := range []struct {
		name, meanwhile string
		copies, history []string
	}{
		{"nothing else", "2", []string{"2"}, []string{"1", "2"}},
		{"another version", "3", []string{"3"}, []string{"1", "2", "3"}},
		{"what it replaced", "1", []string{"1"}, []string{"1", "2", "1"}},
		{"it is removed", "", nil, []string{"1", "2", "removed"}},
	} {
		for _, told := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, told %t", tt.name, told), func(t *testing.T) {
				s := newSyncing(t)
				s.write("1")
				s.settle()
				s.write("2")
				s.beginSync()
				if tt.meanwhile != "2" {
					s.write(tt.meanwhile)
				}
				s.fail()
				if told {
					s.tell("4")
					s.tell(tt.meanwhile)
				}
				if s.settle(); s.WriteError() != "" || !s.OnDisk() {
					t.Errorf("in the end: error %q, pending %v", s.WriteError(), slices.Collect(maps.Keys(s.pending)))
				}
				s.has("in the end", tt.copies...)
				s.wants(tt.history...)
				s.start(tt.meanwhile)
			})
		}
	}
}

// fail has the disk lose what it was asked for, and more.
func (s slowStore) fail() {
	s.Helper()
	index, err := os.ReadFile(s.index.path)
	checked(s.T, err)
	s.answer(fs.ErrInvalid)
	checked(s.T, os.Truncate(s.CopyPath("x.toml", read.IDOf([]byte("2"), nil)), 0))
	checked(s.T, os.WriteFile(s.index.path, index[:len(index)/2], 0o600))
	if s.WriteError() != fs.ErrInvalid.Error() || s.OnDisk() {
		s.Errorf("after a sync that failed: error %q, settled %v", s.WriteError(), s.OnDisk())
	}
}

// start fails the test unless a start finds this version.
func (s slowStore) start(want string) {
	s.Helper()
	st := New(s.stateDir(), s.log)
	st.Load()
	r, known := st.recordOf("x.toml")
	if known != (want != "") || st.indexDamaged {
		s.Fatalf("a start finds %v, damaged %v", st.known, st.indexDamaged)
	}
	if text, err := st.Read("x.toml", r); known && (err != nil || string(text) != want) {
		s.Errorf("a start finds %q, %v; want %q", text, err, want)
	}
}

// What the disk does not say of the history, its index is written again for.
func TestSyncOfHistoryFails(t *testing.T) {
	s := newSyncing(t)
	s.write("1")
	checked(t, os.Remove(s.Store.history.index.path))
	s.settle()
	s.write("2")
	list, _ := Histories(s.stateDir(), "")
	if len(list) != 2 || s.WriteError() != "" {
		t.Errorf("the history has %v; error %q", list, s.WriteError())
	}
}

// A removal that the disk did not say it has is written once more.
func TestSyncOfRemovalFails(t *testing.T) {
	s := newSyncing(t)
	s.write("1")
	s.settle()
	s.write("")
	s.beginSync()
	s.answer(fs.ErrInvalid)
	s.has("after it", "1")
	s.settle()
	s.has("in the end")
	s.wants("1", "removed")
}
