package flows

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/proxier/bootrecord"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A record remembers over the end of the process to which frontends of one family and protocol flows may be tracked: a
// frontend that goes while no daemon runs, or whose daemon is killed before it has looked, leaves flows that would go on for
// as long as their clients send. Each is recorded before the kernel holds it, until its flows have been looked for.
type record struct {
	log  *slog.Logger
	file bootrecord.File

	// Frontends that are recorded and in no table: those that the kernel is about to hold, and those that have gone. Node
	// ports have the unspecified address.
	coming, past map[netip.AddrPort]struct{}

	failed bool // the last write did
}

// The first words of lines, as in "served 10.96.0.10:80".
const (
	wordServed = "served"
	wordGone   = "gone"
)

const recordKind = "svcproxy flows" // in the first line

func recordPath(dir string, fam policy.Family, proto source.Protocol) string {
	return filepath.Join(dir, fmt.Sprintf("flows-%s-%s.journal", fam, proto))
}

// readRecord reads the record in a directory; an empty dir has none.
func readRecord(dir string, fam policy.Family, proto source.Protocol, log *slog.Logger) *record {
	r := &record{log: log, coming: make(map[netip.AddrPort]struct{}), past: make(map[netip.AddrPort]struct{})}
	if dir == "" {
		return r
	}
	here, err := bootrecord.Here()
	if err == nil {
		r.file, _, err = bootrecord.Read(recordPath(dir, fam, proto), recordKind, here, r.replay)
	}
	if err != nil {
		log.Warn("cannot remove flows to services that were removed before this start; they persist while clients send", "err", fmt.Errorf("reading which those were: %w", err))
	}
	return r
}

// Forget removes what is recorded in a directory of a Config: nothing of ours is in the kernel any more.
func Forget(dir string) error {
	here, err := bootrecord.Here()
	if err != nil {
		return err
	}
	var errs []error
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		for _, proto := range []source.Protocol{source.UDP, source.TCP, source.SCTP} {
			f, _, err := bootrecord.Read(recordPath(dir, fam, proto), recordKind, here, func(string) error { return nil })
			errs = append(errs, err, f.Clear())
		}
	}
	return errors.Join(errs...)
}

func (r *record) replay(line string) error {
	word, at, _ := strings.Cut(strings.TrimSpace(line), " ")
	frontend, err := netip.ParseAddrPort(at)
	switch {
	case err != nil:
		return err
	case word == wordServed:
		r.past[frontend] = struct{}{}
	case word == wordGone:
		delete(r.past, frontend)
	default:
		return fmt.Errorf("unknown word %q", word)
	}
	return nil
}

// expect records frontends that the kernel is about to hold, and the table does not have.
func (r *record) expect(changes []policy.ServiceChange, t *table) {
	for _, ch := range changes {
		for _, f := range ofProtocol(ch.New, t.proto) {
			at := f.AddrPort()
			_, comes := r.coming[at]
			if comes || t.frontends[at] != nil {
				continue
			}
			if _, recorded := r.past[at]; !recorded {
				r.file.Note(wordServed, at)
			}
			r.coming[at] = struct{}{}
			delete(r.past, at)
		}
	}
	r.write(t)
}

// synced takes over which frontends the kernel had, and has. It returns those that have gone and that the table never had:
// a Sync that failed may have made them.
func (r *record) synced(changes []policy.ServiceChange, t *table) (unseen []netip.AddrPort) {
	for at := range r.coming {
		if t.frontends[at] == nil {
			r.past[at] = struct{}{}
			unseen = append(unseen, at)
		}
	}
	if len(r.coming) > 0 {
		r.coming = make(map[netip.AddrPort]struct{}) // gives memory back, too
	}
	for _, ch := range changes {
		for _, f := range ofProtocol(ch.Old, t.proto) {
			if at := f.AddrPort(); t.frontends[at] == nil {
				r.past[at] = struct{}{}
			}
		}
	}
	if len(r.past) == 0 {
		r.past = make(map[netip.AddrPort]struct{})
	}
	return unseen
}

// settled notes that the flows of those that have gone were looked for, except where a look is to come.
func (r *record) settled(t *table, looks []*look) {
	if len(r.past) == 0 {
		return
	}
	for at := range r.past {
		if !slices.ContainsFunc(looks, func(l *look) bool { return l.names(at) }) {
			r.file.Note(wordGone, at)
			delete(r.past, at)
		}
	}
	r.write(t)
}

func (r *record) write(t *table) {
	err := r.file.Write(len(t.frontends)+len(r.coming)+len(r.past), func() (all []byte) {
		for _, at := range slices.Concat(slices.Collect(maps.Keys(t.frontends)), slices.Collect(maps.Keys(r.coming)), slices.Collect(maps.Keys(r.past))) {
			all = bootrecord.AppendLine(all, wordServed, at)
		}
		return all
	})
	if err != nil && !r.failed {
		r.log.Warn("a restart will not know to which services connections are tracked: those to services that go meanwhile go on for as long as their clients send", "err", err)
	}
	r.failed = err != nil
}
