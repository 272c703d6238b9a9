package ipvs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
	"svcproxy/source"
)

// A record is what a restart must know and the kernel does not tell: which
// virtual servers on addresses of other devices are ours, and since when
// destinations drain. It is kept in a file for each family.
type record struct {
	path    string
	written []byte // what the file holds; nil: not known

	owned  map[lvs.Key]struct{}
	drains drains
}

// drains say since when destinations have had weight 0 because they left.
type drains map[lvs.Key]map[netip.AddrPort]time.Time

func (d drains) since(k lvs.Key, at netip.AddrPort) (time.Time, bool) {
	t, ok := d[k][at]
	return t, ok
}

func (d drains) set(k lvs.Key, at netip.AddrPort, since time.Time) {
	if d[k] == nil {
		d[k] = map[netip.AddrPort]time.Time{}
	}
	d[k][at] = since
}

// remove returns false if there was nothing to remove.
func (d drains) remove(k lvs.Key, at netip.AddrPort) bool {
	_, had := d[k][at]
	if delete(d[k], at); len(d[k]) == 0 {
		delete(d, k)
	}
	return had
}

func (d drains) clone() drains {
	c := make(drains, len(d))
	for k, dests := range d {
		c[k] = maps.Clone(dests)
	}
	return c
}

// recordFile is the form of the file.
type recordFile struct {
	Servers []recordKey   `json:"servers"` // on addresses of other devices than ours
	Drains  []recordDrain `json:"drains"`
}

type recordKey struct {
	Protocol source.Protocol `json:"protocol"` // IANA number
	Address  netip.AddrPort  `json:"address"`
}

type recordDrain struct {
	Server      recordKey      `json:"server"`
	Destination netip.AddrPort `json:"destination"`
	Since       time.Time      `json:"since"`
}

func keyOf(k recordKey) lvs.Key {
	return lvs.Key{Addr: k.Address.Addr(), Protocol: uint8(k.Protocol), Port: k.Address.Port()}
}

func recordKeyOf(k lvs.Key) recordKey {
	return recordKey{source.Protocol(k.Protocol), netip.AddrPortFrom(k.Addr, k.Port)}
}

// readRecord reads the record of a family; an empty dir keeps none.
func readRecord(dir string, fam proxier.Family) (*record, error) {
	r := &record{owned: map[lvs.Key]struct{}{}, drains: drains{}}
	if dir == "" {
		return r, nil
	}
	r.path = filepath.Join(dir, "ipvs-"+fam.String()+".json")
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what is ours in IPVS: %w", err)
	}
	var f recordFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("reading what is ours in IPVS: %s: %w; remove the file, and virtual servers on node addresses that no service has", r.path, err)
	}
	for _, k := range f.Servers {
		r.owned[keyOf(k)] = struct{}{}
	}
	for _, d := range f.Drains {
		r.drains.set(keyOf(d.Server), d.Destination, d.Since)
	}
	r.written = data
	return r, nil
}

func (r *record) owns(k lvs.Key) bool {
	_, ok := r.owned[k]
	return ok
}

// write makes the file say what r holds. Nothing to say is no file.
func (r *record) write() error {
	if r.path == "" {
		return nil
	}
	err := r.replace()
	if err != nil {
		r.written = nil
		return fmt.Errorf("recording what is ours in IPVS: %w", err)
	}
	return nil
}

func (r *record) replace() error {
	if len(r.owned)+len(r.drains) == 0 {
		r.written = nil
		if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.Marshal(r.file())
	if err != nil || string(data) == string(r.written) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o700); err != nil {
		return err
	}
	tmp := r.path + ".new"
	// Not synced: a kernel that stops holds nothing that the file could tell of.
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, r.path); err != nil {
		return err
	}
	r.written = data
	return nil
}

func (r *record) file() *recordFile {
	f := &recordFile{Servers: []recordKey{}, Drains: []recordDrain{}}
	for _, k := range slices.SortedFunc(maps.Keys(r.owned), compareKeys) {
		f.Servers = append(f.Servers, recordKeyOf(k))
	}
	for _, k := range slices.SortedFunc(maps.Keys(r.drains), compareKeys) {
		for _, at := range slices.SortedFunc(maps.Keys(r.drains[k]), netip.AddrPort.Compare) {
			f.Drains = append(f.Drains, recordDrain{recordKeyOf(k), at, r.drains[k][at]})
		}
	}
	return f
}
