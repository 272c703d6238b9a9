package guest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// Home is the directory that programs start in.
const Home = "/root"

// AppendTree appends a file of this host, or those below a directory, to files, to be put at a path of the guest.
// What links lead to is put there in their place, except for directories.
func AppendTree(files []File, from, to string) ([]File, error) {
	err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := os.Stat(name) // of what a link leads to
		if err != nil || info.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		files = append(files, File{Path: path.Join(to, rel), Mode: info.Mode(), Data: data})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading files for a guest: %w", err)
	}
	return files, nil
}
