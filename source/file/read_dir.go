package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"svcproxy.dev/svcproxy/source"
)

// ReadDir reads all service files of a directory, in name order. The error is
// about the directory; what is wrong with a file is among its faults.
func (rules Rules) ReadDir(dir string) ([]File, error) {
	return readDir(dir, rules.maxSize(), rules.parseNew)
}

func readDir(dir string, max int, parse parser) ([]File, error) {
	names, err := listFiles(dir)
	if err != nil {
		return nil, err
	}
	read := make([]*File, len(names))
	inParallel(len(names), func(i int) {
		path := filepath.Join(dir, names[i])
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return // a link to a directory
		}
		f := readFile(path, max, parse)
		read[i] = &f
	})
	files := make([]File, 0, len(names))
	for _, f := range read {
		if f != nil {
			files = append(files, *f)
		}
	}
	return files, nil
}

// ReadFile reads one file as a service file, whatever its name.
func (rules Rules) ReadFile(path string) File {
	return readFile(path, rules.maxSize(), rules.parseNew)
}

func readFile(path string, max int, parse parser) File {
	data, _, err := readContent(path, max)
	v := newVersion(context.Background(), path, data, err, parse, nil)
	var large errTooLarge
	return File{Path: path, Services: v.services, Faults: v.faults, Unreadable: err != nil && !errors.As(err, &large)}
}

// ReadText reads a text as a service file that has this name in messages. It is
// JSON when it begins as an object does, else TOML. The text is returned too.
func (rules Rules) ReadText(name string, r io.Reader) (File, []byte) {
	data, err := io.ReadAll(io.LimitReader(r, int64(rules.maxSize())+1))
	if err != nil {
		return File{Path: name, Faults: []source.Fault{unreadable(name, err)}, Unreadable: true}, nil
	}
	start := bytes.TrimLeft(bytes.TrimPrefix(data, []byte("\ufeff")), " \t\r\n")
	services, faults, _ := rules.parse(context.Background(), name, data, bytes.HasPrefix(start, []byte("{")), nil)
	return File{Path: name, Services: services, Faults: faults}, data
}

// listFiles returns the names of the service files in dir, sorted.
func listFiles(dir string) ([]string, error) {
	names, _, err := listWithID(dir)
	return names, err
}

// listWithID also says which directory that is.
func listWithID(dir string) (names []string, id dirID, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, id, fmt.Errorf("listing service files: %w", err)
	}
	defer d.Close()
	if id, err = dirIDOf(int(d.Fd()), ""); err != nil {
		return nil, id, fmt.Errorf("listing service files: %w", err)
	}
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, id, fmt.Errorf("listing service files: %w", err)
	}
	for _, e := range entries {
		if isServiceFile(e.Name()) && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, id, nil
}

// inParallel calls f with 0 to n-1 on all cores.
func inParallel(n int, f func(i int)) {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error { f(i); return nil })
	}
	_ = g.Wait()
}
