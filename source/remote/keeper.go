package remote

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/source/disk"
)

// format changes when older files cannot be read any more.
const format = 1

// What is known is written this long after it changed, and so seldom that it takes
// a hundredth of one processor.
const (
	saveDelay = 5 * time.Second
	saveShare = 100
)

// endWait is how long the end of a source may wait for writes: a daemon that is told to
// stop does so within 1 s.
const endWait = 500 * time.Millisecond

// maxServices bounds what is read: far more than a kernel can hold.
const maxServices = 10_000_000

// A Head is what the kept file of every source begins with.
type Head struct {
	Format  int       `json:"format"`
	Server  string    `json:"server"`
	Written time.Time `json:"written"`
	Count   int       `json:"services"`
}

func (h *Head) head() *Head { return h }

// A Header is a struct that embeds Head: of which server, and for whom, services are.
type Header interface{ head() *Head }

// Save writes what was handed on, so that a power failure leaves what was there before,
// or this: gzip, whose checksum finds what is cut off or damaged, of one JSON value a
// line, a Header and then as many Handed as it says.
func Save(path string, h Header, services []Handed) error {
	h.head().Format, h.head().Count = format, len(services)
	return disk.Replace(path, path+".new", true, func(w io.Writer) error { return write(w, h, services) })
}

func write(w io.Writer, h Header, services []Handed) error {
	buffer := bufio.NewWriterSize(w, 64<<10)
	zip, err := gzip.NewWriterLevel(buffer, gzip.BestSpeed)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(zip)
	err = lines.Encode(h)
	for i := 0; err == nil && i < len(services); i++ {
		err = lines.Encode(&services[i])
	}
	return errors.Join(err, zip.Close(), buffer.Flush())
}

// Load returns what Save wrote, and fills in h.
func Load(path string, h Header) (services []Handed, err error) {
	err = load(path, func(r io.Reader) error {
		services, err = read(r, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	return services, nil
}

// LoadHead fills in h as Load does, and reads no services.
func LoadHead(path string, h Header) error {
	return load(path, func(r io.Reader) error { return readHead(json.NewDecoder(r), h) })
}

func load(path string, read func(io.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	zip, err := gzip.NewReader(bufio.NewReader(f))
	if err == nil {
		err = read(zip)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func readHead(lines *json.Decoder, h Header) error {
	if err := lines.Decode(h); err != nil {
		return err
	}
	if h := h.head(); h.Format != format || h.Count < 0 || h.Count > maxServices {
		return fmt.Errorf("format %d with %d services; want format %d", h.Format, h.Count, format)
	}
	return nil
}

func read(r io.Reader, h Header) (services []Handed, err error) {
	lines := json.NewDecoder(r)
	if err := readHead(lines, h); err != nil {
		return nil, err
	}
	for range h.head().Count {
		var s Handed
		if err := lines.Decode(&s); err != nil {
			return nil, err
		}
		if s.Service == nil || len(faultsOf(s.Service)) > 0 {
			return nil, errors.New("it holds a service that cannot be used")
		}
		services = append(services, s)
	}
	_, err = io.Copy(io.Discard, io.MultiReader(lines.Buffered(), r)) // gzip checks at the end
	return services, err
}

// A Keeper writes what was handed on, beside the goroutine that its methods are called from.
type Keeper struct {
	path    string
	log     *slog.Logger
	known   func() (Header, []Handed)
	changed bool
	begun   bool          // a write, of which nobody has asked how it ended
	due     time.Time     // when to write what has changed, or to ask
	free    chan struct{} // has one element while nothing is being written

	// Of the last write; by who holds what is in free.
	took time.Duration
	said string // why it failed, as warned of; empty: it did not
}

// NewKeeper returns one that writes what known returns, which is called from the
// goroutine of the caller. Path empty: nothing is written.
func NewKeeper(path string, log *slog.Logger, known func() (Header, []Handed)) *Keeper {
	k := &Keeper{path: path, log: log, known: known, free: make(chan struct{}, 1)}
	k.free <- struct{}{}
	return k
}

// Note says that there is something new to write.
func (k *Keeper) Note() {
	if !k.changed && k.path != "" {
		k.changed, k.due = true, times.Later(k.due, time.Now().Add(saveDelay))
	}
}

// Due returns when Save has something to do.
func (k *Keeper) Due() (at time.Time, some bool) { return k.due, k.changed || k.begun }

// Save writes, if that is due and nothing is being written. What could not be written is written again.
func (k *Keeper) Save(now time.Time) {
	if !k.changed && !k.begun || now.Before(k.due) {
		return
	}
	select {
	case <-k.free:
	default:
		k.due = now.Add(saveDelay)
		return
	}
	if !k.changed && k.said == "" {
		k.begun = false
		k.free <- struct{}{}
		return
	}
	k.changed, k.begun, k.due = false, true, now.Add(max(saveDelay, saveShare*k.took))
	k.start()
}

// start writes, by who has taken what is in free.
func (k *Keeper) start() {
	h, services := k.known()
	go func() {
		k.write(h, services)
		k.free <- struct{}{}
	}()
}

// End waits for a write, and writes what is new where all is known, unless that would
// hold up the end: a write that hangs, as on a disk that is gone, is left behind.
func (k *Keeper) End(known bool) {
	enough := time.After(endWait)
	if !k.Idle(enough) || !k.changed && k.said == "" || !known || k.took >= endWait {
		return
	}
	<-k.free
	k.start()
	k.Idle(enough)
}

// Idle waits until nothing is being written, and reports whether that came first.
func (k *Keeper) Idle(enough <-chan time.Time) bool {
	select {
	case <-k.free:
		k.free <- struct{}{}
		return true
	case <-enough:
		return false
	}
}

func (k *Keeper) write(h Header, services []Handed) {
	begin := time.Now()
	err := Save(k.path, h, services)
	k.took = time.Since(begin)
	why := ""
	if err != nil {
		why = err.Error()
	}
	if why != "" && why != k.said {
		k.log.Warn("cannot save the last known services for the next start", "err", err)
	}
	k.said = why
}
