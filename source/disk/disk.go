// Package disk reads and replaces files. An Asker waits for a file system for as long as a step may take, and a Stamp tells
// versions of a file apart.
//
//	disk      Replace: a file takes the place of another, so that a crash leaves one of the two
//	patience  Ask: a question to a file system that may never answer, as NFS whose server is gone
//	path      what there is at a path
//	stamp     what tells versions of a file apart without reading them
//	text      the text of a file, if it is a regular one and not too large
package disk

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Replace makes or replaces the file at path by what write says, in one step. It is
// written to draft first, which is in the same directory, of nobody else, and may be
// there of a program that was killed. Synced, a power failure too leaves the file as it was or
// as it is now, and once Replace has returned, as it is now.
func Replace(path, draft string, synced bool, write func(io.Writer) error) error {
	err := fill(draft, synced, write)
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		_ = os.Remove(draft) // it may not be there
		return err
	}
	if synced {
		return Sync(filepath.Dir(path))
	}
	return nil
}

// Bytes writes data.
func Bytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

func fill(draft string, synced bool, write func(io.Writer) error) error {
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil && synced {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Sync waits until the contents of a file, or the names in a directory, are on the disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
