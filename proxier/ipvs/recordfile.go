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

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
	"svcproxy/source"
	"svcproxy/source/disk"
)

// A journal is the file of a record, one for each family. Changes are appended, a
// sync's in one write; it is written anew when most of its lines are outdated.
//
//	svcproxy ipvs, boot 7d1c..., network namespace 4026531840
//	own tcp 10.96.0.10:80
//	drain tcp 10.96.0.10:80 192.168.10.11:8080 2026-11-22T03:40:31.5Z
//	drained tcp 10.96.0.10:80 192.168.10.11:8080
//	gone tcp 10.96.0.10:80
//
// It is never synced to the disk: what a kernel that stops leaves of it is void,
// as is the journal of another boot. A process that is killed may leave a line
// without its end; what it announced was not done.
type recordFile struct {
	path    string // empty: nothing is kept
	head    string // the first line that is valid here
	pending []byte // lines to be written

	size       int64 // of the file as we know it; unknown: it is to be written anew
	count      int   // lines that it has
	otherScope bool  // the file is of another boot or namespace
	stale      bool  // the last write failed: the file does not say what is true
}

// The first words of lines.
const (
	wordOwn     = "own"
	wordGone    = "gone"
	wordDrain   = "drain"
	wordDrained = "drained"
)

const unknown = -1

// spare is how many outdated lines, some 60 bytes each, are never worth writing a journal anew.
const maxOutdated = 1000

// readRecord reads the record of a family; an empty dir keeps none. Damaged is
// how many lines of it make no sense. It writes nothing.
func readRecord(dir string, fam proxier.Family, scope string) (r *record, damaged int, err error) {
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

// read follows what a file says if it is of this boot and namespace. A last line
// without its end is passed over, and lines that make no sense are counted.
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
	r.pending, r.count = nil, lines // they are there
	if whole == len(data) && damaged == 0 {
		r.size = int64(whole)
	}
	return damaged
}

// A line says one thing of a virtual server.
type line struct {
	word  string
	key   lvs.Key
	at    netip.AddrPort // of drains
	since time.Time      // of their beginnings
}

// fields are how many words a line has.
var fields = map[string]int{wordOwn: 3, wordGone: 3, wordDrained: 4, wordDrain: 5}

func parseLine(text string) (l line, err error) {
	words := strings.Fields(text)
	if len(words) == 0 || fields[words[0]] != len(words) {
		return l, fmt.Errorf("%q: it has %d words", text, len(words))
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

// protocols are those of services, by their names.
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

// write makes the file say what is true: by what is pending, or anew, by all
// lines, of which there are live. None are no file.
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

// errChanged says that the file is not as we left it.
var errChanged = errors.New("somebody else changed the file")

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

// replace puts a new file in place of the old one, in one step.
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

// remove removes the file, but for one that may be good where it was made.
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
