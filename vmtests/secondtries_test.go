//go:build vm

package vmtests

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"svcproxy.dev/svcproxy/vmtests/guest"
)

// secondTries are the tests that failed in a guest and were run once more, and the runs whose guest died.
type secondTries struct {
	mu    sync.Mutex
	names []string
}

func (s *secondTries) add(run string, patterns []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range patterns {
		s.names = append(s.names, run+": "+p)
	}
}

// again returns what notes, and says, that a run takes another guest.
func (s *secondTries) again(run string) func(error) {
	return func(err error) {
		fmt.Fprintf(os.Stderr, "%s: booting once more: %v\n", run, err)
		s.add(run, []string{"its guest died"})
	}
}

// String returns how many there were, and which.
func (s *secondTries) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("second tries in guests: %d\n%s", len(s.names), strings.Join(append(s.names, ""), "\n"))
}

var tried secondTries

// TestMain ends with the second tries, which a run that passes must not hide: go test
// prints them only with -v, see make test-vm.
func TestMain(m *testing.M) {
	code := m.Run()
	fmt.Print(&tried)
	os.Exit(code)
}

func TestSecondTriesAreCounted(t *testing.T) {
	var s secondTries
	if got, want := s.String(), "second tries in guests: 0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s.add("TestLab/ipvs", []string{"^TestA$", "^TestB$"})
	s.again("TestLab/units")
	s.again("TestLab/hosts")(guest.ErrDied)
	if got, want := s.String(), "second tries in guests: 3\nTestLab/ipvs: ^TestA$\nTestLab/ipvs: ^TestB$\nTestLab/hosts: its guest died\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
