package read

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/internal/parallel"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

// ReadDir reads all service files of a directory, in name order. A directory in the place of one is
// passed over, unless the name is known, see Recorded: then it is a file that cannot be read. The error is
// about the directory; what is wrong with a file is among its faults.
func (rules Rules) ReadDir(dir string, known map[string]bool) ([]File, error) {
	return rules.readDir(dir, known, Rules.ParseNew)
}

func (rules Rules) readDir(dir string, known map[string]bool, parse Parser) ([]File, error) {
	d := disk.NewAsker(dir)
	found, ok := disk.Ask(d, dir, func() Listing { return ListDir(dir) })
	if !ok {
		found.Err = fmt.Errorf("listing service files: %w", &fs.PathError{Op: "open", Path: dir, Err: disk.ErrNoAnswer})
	}
	if found.Err != nil {
		return nil, found.Err
	}
	names := slices.Concat(found.Names, found.Dirs)
	slices.Sort(names)
	read := make([]*Version, len(names))
	parallel.Do(len(read), func(i int) {
		path := filepath.Join(dir, names[i])
		if is := d.Stat(path); is.Err == nil && is.Info.IsDir() && !known[names[i]] {
			return
		}
		read[i] = rules.readFile(d, path, parse)
	})
	read = slices.DeleteFunc(read, func(f *Version) bool { return f == nil })
	return rules.together(read), nil
}

// ReadFile reads one file as a service file, whatever its name, unless that is one of a file of
// endpoints. The lists that it refers to are those beside it.
func (rules Rules) ReadFile(path string) File {
	dir := filepath.Dir(path)
	d := disk.NewAsker(dir)
	f := rules.readFile(d, path, Rules.ParseNew)
	return f.alone(rules, rules.listsOf(d, dir))
}

func (rules Rules) readFile(d *disk.Asker, path string, parse Parser) *Version {
	t := d.ReadOnce(path, rules.MaxSize())
	rules = rules.OfText(t)
	v := NewVersion(context.Background(), path, t.Data, t.Err, rules, parse, nil)
	_, large := errors.AsType[disk.TooLargeError](t.Err)
	v.unreadable = t.Err != nil && !large
	return v
}

// ReadText reads a text as a service file that has this name in messages, and refers to lists of
// a directory. It is JSON when it begins as an object does, else TOML. The text is returned too.
func (rules Rules) ReadText(name, dir string, r io.Reader) (File, []byte) {
	data, err := io.ReadAll(io.LimitReader(r, int64(rules.MaxSize())+1))
	if err != nil {
		return File{Path: name, Faults: []source.Fault{Unreadable(name, err)}, Unreadable: true}, nil
	}
	rules.GuardPrograms = false // it is no file yet
	start := bytes.TrimLeft(bytes.TrimPrefix(data, []byte("\ufeff")), " \t\r\n")
	parse := func(rules Rules, ctx context.Context, path string, data []byte, before KnownServices) ([]*source.Service, []source.Fault, KnownServices) {
		return rules.parse(ctx, path, data, bytes.HasPrefix(start, []byte("{")), before)
	}
	f := NewVersion(context.Background(), name, data, nil, rules, parse, nil)
	return f.alone(rules, rules.listsOf(disk.NewAsker(dir), dir)), data
}
