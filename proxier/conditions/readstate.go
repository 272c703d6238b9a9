package conditions

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// errMissing says that there is no file although an earlier run has left something in it.
var errMissing = errors.New("the file is missing")

// read returns what the file says. With an error that is not all: each drain is there that can be
// read, and all services or none. Such a file is out of the way of the next one then.
func (f *stateFile) read() (*state, error) {
	st := &state{Drains: new(Drains)}
	_, err := os.Lstat(f.path + markSuffix)
	f.marked = err == nil
	data, err := f.bytes()
	if errors.Is(err, fs.ErrNotExist) {
		if f.missing = f.marked; f.missing {
			return st, errMissing
		}
		return st, nil
	}
	if err == nil {
		err = st.read(data)
	}
	if err != nil {
		return st, errors.Join(err, f.putAside())
	}
	return st, nil
}

// putAside keeps a file for people to look at. What is no file is none of ours.
func (f *stateFile) putAside() error {
	if info, err := os.Lstat(f.path); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return os.Rename(f.path, f.path+badSuffix)
}

// read takes in what a file says, as far as it can be read: drains come before services, which are
// most of it. The services of another format are left out.
func (st *state) read(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	bad, err := readEach(dec, '{', func(key json.Token) (bad, err error) {
		if key == "drains" {
			return st.Drains.read(dec)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		switch key {
		case "format":
			return json.Unmarshal(value, &st.Format), nil
		case "services":
			if bad = json.Unmarshal(value, &st.Services); bad != nil {
				st.Services = nil
			}
		}
		return bad, nil
	})
	if bad = cmp.Or(bad, err); st.Format != format {
		bad = cmp.Or(bad, fmt.Errorf("format %d; want %d", st.Format, format))
		st.Services = nil
	}
	return bad
}

// readEach reads an object or a list, of which visit reads each value. The error bad is of values alone; after err nothing
// more can be read.
func readEach(dec *json.Decoder, open json.Delim, visit func(key json.Token) (bad, err error)) (bad, err error) {
	t, err := dec.Token()
	if err != nil || t == nil && open == '[' {
		return nil, err
	}
	if t != open {
		err := fmt.Errorf("%.20q in place of %v", fmt.Sprint(t), open)
		if open == '[' {
			err = fmt.Errorf("drains are no list: %.20q", fmt.Sprint(t))
		}
		if _, begun := t.(json.Delim); begun { // it has an end somewhere
			return nil, err
		}
		return err, nil
	}
	for dec.More() {
		var key json.Token
		if open == '{' {
			if key, err = dec.Token(); err != nil {
				return bad, err
			}
		}
		one, err := visit(key)
		if bad = cmp.Or(bad, one); err != nil {
			return bad, err
		}
	}
	_, err = dec.Token()
	return bad, err
}

// read takes in a list of drains, without those that have no target. The errors are as of readEach.
func (d *Drains) read(dec *json.Decoder) (bad, err error) {
	return readEach(dec, '[', func(json.Token) (bad, err error) {
		var one json.RawMessage
		if err := dec.Decode(&one); err != nil {
			return nil, err
		}
		return d.readOne(one), nil
	})
}

// readOne takes in a drain if it has a target.
func (d *Drains) readOne(text json.RawMessage) error {
	var one Drained
	err := json.Unmarshal(text, &one)
	if one.Target == (DrainTarget{}) {
		err = cmp.Or(err, errTarget)
	} else { // that is what matters of it
		err = cmp.Or(err, d.Set(one.Target, one.Drain))
	}
	if err != nil {
		return fmt.Errorf("drain %.100q: %w", text, err)
	}
	return nil
}
