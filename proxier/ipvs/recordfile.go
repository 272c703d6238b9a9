package ipvs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

// A recordFile is the file of a record, one for each family. Changes are appended, those
// of a sync in one write; it is rewritten when most of its lines are outdated.
//
//	svcproxy ipvs, boot 7d1c..., network namespace 4026531840
//	own tcp 10.96.0.10:80
//	drain tcp 10.96.0.10:80 192.168.10.11:8080 2026-11-22T03:40:31.5Z
//	drained tcp 10.96.0.10:80 192.168.10.11:8080
//	gone tcp 10.96.0.10:80
//
// It is never synced to disk: what is left of it when the kernel stops is invalid, like
// a file of another boot. A process that is killed may leave an incomplete line; what
// that announced was not done.
type recordFile struct {
	path    string // empty: no file
	head    string // the first line of a valid file
	pending []byte // lines to be written

	size       int64 // of the file as we wrote it; unknown: rewrite it
	count      int   // of its lines
	otherScope bool  // the file is of another boot or namespace
	stale      bool  // the last write failed: the file is out of date
}

// The first words of lines.
const (
	wordOwn     = "own"
	wordGone    = "gone"
	wordDrain   = "drain"
	wordDrained = "drained"
)

const unknown = -1

// maxOutdated is how many outdated lines, some 60 bytes each, never cause a rewrite.
const maxOutdated = 1000

// readRecord reads the record of a family; an empty dir has none. damaged is how many of
// its lines are invalid. It writes nothing.
func readRecord(dir string, fam policy.Family, scope string) (r *record, damaged int, err error) {
	r = newRecord()
	if dir == "" {
		return r, 0, nil
	}
	r.path = filepath.Join(dir, "ipvs-"+fam.String()+".journal")
	r.head = "svcproxy ipvs, " + scope
	r.size = unknown
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading which virtual servers are ours: %w", err)
	}
	return r, r.read(data), nil
}

// read replays a file if it is of this boot and namespace. It ignores an incomplete last
// line, and counts invalid lines.
func (r *record) read(data []byte) (damaged int) {
	whole := bytes.LastIndexByte(data, '\n') + 1
	head, rest, _ := strings.Cut(string(data[:whole]), "\n")
	if r.otherScope = head != r.head; r.otherScope {
		return 0
	}
	lines := 0
	for text := range strings.Lines(rest) {
		lines++
		if l, err := parseLine(text); err != nil {
			damaged++
		} else {
			r.replay(l)
		}
	}
	r.pending, r.count = nil, lines // the file has them
	if whole == len(data) && damaged == 0 {
		r.size = int64(whole)
	}
	return damaged
}

// A line is one change of a virtual server.
type line struct {
	word  string
	key   lvs.Key
	at    netip.AddrPort // for drains
	since time.Time      // for the beginning of a drain
}

// fields is the number of words in a line.
var fields = map[string]int{wordOwn: 3, wordGone: 3, wordDrained: 4, wordDrain: 5}

func parseLine(text string) (l line, err error) {
	words := strings.Fields(text)
	if len(words) == 0 || fields[words[0]] != len(words) {
		return l, fmt.Errorf("%q: wrong number of words: %d", text, len(words))
	}
	l.word = words[0]
	protocol, ok := protocols[words[1]]
	if !ok {
		return l, fmt.Errorf("unknown protocol %q", words[1])
	}
	server, err := netip.ParseAddrPort(words[2])
	l.key = lvs.Key{Addr: server.Addr(), Protocol: uint8(protocol), Port: server.Port()}
	if err == nil && len(words) > 3 {
		l.at, err = netip.ParseAddrPort(words[3])
	}
	if err == nil && len(words) > 4 {
		l.since, err = time.Parse(time.RFC3339Nano, words[4])
	}
	return l, err
}

// protocols are the protocols of services by name.
var protocols = map[string]source.Protocol{
	source.TCP.String(): source.TCP, source.UDP.String(): source.UDP, source.SCTP.String(): source.SCTP,
}

func appendLine(b []byte, word string, k lvs.Key, more ...any) []byte {
	b = fmt.Appendf(b, "%s %s %s", word, source.Protocol(k.Protocol), netip.AddrPortFrom(k.Addr, k.Port))
	for _, m := range more {
		b = fmt.Appendf(b, " %v", m)
	}
	return append(b, '\n')
}

func (j *recordFile) note(word string, k lvs.Key, more ...any) {
	if j.path != "" {
		j.pending = appendLine(j.pending, word, k, more...)
		j.count++
	}
}

// write updates the file: with the pending lines, or from scratch with all lines, of
// which there are live. Without any the file is removed.
func (j *recordFile) write(live int, all func() []byte) error {
	if len(j.pending) == 0 && !j.stale {
		return nil
	}
	var err error
	switch {
	case live == 0:
		err = j.remove()
	case j.size == unknown || j.count > 2*live+maxOutdated:
		err = j.replace(live, all())
	default:
		if err = j.appendPending(); errors.Is(err, errChanged) {
			err = j.replace(live, all())
		}
	}
	j.pending = j.pending[:0]
	if j.stale = err != nil; j.stale {
		j.size = unknown
	}
	return err
}

var errChanged = errors.New("another process changed the file")

func (j *recordFile) appendPending() error {
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errChanged
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != j.size {
		return errChanged
	}
	n, err := f.Write(j.pending)
	j.size += int64(n)
	return err
}

// replace replaces the file atomically.
func (j *recordFile) replace(live int, all []byte) error {
	if err := os.MkdirAll(filepath.Dir(j.path), 0o755); err != nil {
		return err
	}
	data := append([]byte(j.head+"\n"), all...)
	if err := disk.Replace(j.path, j.tempPath(), false, disk.Bytes(data)); err != nil {
		return err
	}
	j.size, j.count, j.otherScope = int64(len(data)), live, false
	return nil
}

func (j *recordFile) tempPath() string { return j.path + ".new" }

// remove removes the file, unless it may be valid in another namespace.
func (j *recordFile) remove() error {
	if j.otherScope {
		return nil
	}
	j.size, j.count = unknown, 0
	for _, path := range []string{j.tempPath(), j.path} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
