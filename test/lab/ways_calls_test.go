//go:build netns

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// callWays are those of system calls that few programs use.
var callWays = []way{
	{"O_TMPFILE and linkat", nil, writing(func(path, text string) error {
		return errors.Join(os.Remove(path), linked(path, path, text))
	})},
	{"RENAME_EXCHANGE", nil, writing(exchange)},
	{"RENAME_NOREPLACE", nil, writing(func(path, text string) error {
		err := errors.Join(write(path+".tmp", text), os.Remove(path))
		return errors.Join(err, unix.Renameat2(unix.AT_FDCWD, path+".tmp", unix.AT_FDCWD, path, unix.RENAME_NOREPLACE))
	})},
	{"renamed over, then written", nil, writing(renamedEmpty)},
	{"O_APPEND", nil, writing(func(path, text string) error {
		return errors.Join(os.Truncate(path, 0), change(path, unix.O_WRONLY|unix.O_APPEND, func(f *os.File) error { return blocks(f, text) }))
	})},
	{"O_SYNC", nil, writing(func(path, text string) error {
		return change(path, unix.O_WRONLY|unix.O_TRUNC|unix.O_SYNC, func(f *os.File) error { return blocks(f, text) })
	})},
	{"O_DIRECT", padded((*site).plain), padded(writing(direct))},
	{"fallocate and pwrite", nil, writing(func(path, text string) error {
		return change(path, unix.O_RDWR|unix.O_TRUNC, func(f *os.File) error {
			err := unix.Fallocate(int(f.Fd()), 0, 0, paddedSize)
			return errors.Join(err, backwards(f, text), f.Truncate(int64(len(text))))
		})
	})},
	{"pwrite, the end first", nil, writing(func(path, text string) error {
		return change(path, unix.O_RDWR|unix.O_TRUNC, func(f *os.File) error { return backwards(f, text) })
	})},
	{"mmap", padded((*site).plain), padded(writing(mapped))},
	{"mmap after O_TRUNC", nil, writing(func(path, text string) error {
		return change(path, unix.O_RDWR|unix.O_TRUNC, func(f *os.File) error {
			return errors.Join(f.Truncate(int64(len(text))), mapOver(f, text))
		})
	})},
	{"sendfile", nil, fromFile(func(to, from *os.File, size int) error {
		_, err := unix.Sendfile(int(to.Fd()), int(from.Fd()), nil, size)
		return err
	})},
	{"copy_file_range", nil, fromFile(func(to, from *os.File, size int) error {
		_, err := unix.CopyFileRange(int(from.Fd()), nil, int(to.Fd()), nil, size, 0)
		return err
	})},
	{"splice", nil, fromFile(splice)},
	{"io_submit", nil, writing(func(path, text string) error {
		return change(path, unix.O_RDWR|unix.O_TRUNC, func(f *os.File) error { return submit(f, text) })
	})},
	{"by /proc/self/fd", nil, writing(func(path, text string) error {
		return change(path, unix.O_RDONLY, func(f *os.File) error { return write(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), text) })
	})},
	{"another hard link written", (*site).linkHard, func(s *site, text string) error { return write(s.target(), text) }},
	{"attributes changed afterwards", nil, writing(func(path, text string) error {
		old := time.Unix(1e9, 0)
		return errors.Join(write(path, text), os.Chown(path, 1, 1), os.Chmod(path, 0o600), os.Chown(path, 0, 0), os.Chtimes(path, old, old))
	})},
	{"two versions at once", nil, writing(func(path, text string) error {
		return errors.Join(copyFile(path, path+".tmp"), os.Rename(path+".tmp", path), renameOver(path, text))
	})},
	{"empty for a while", nil, writing(func(path, text string) error {
		err := os.Truncate(path, 0)
		time.Sleep(2 * quietTime)
		return errors.Join(err, write(path, text))
	})},
	{"a pipe for a while", nil, writing(func(path, text string) error {
		return forAWhile(path, text, func() error { return unix.Mkfifo(path, 0o644) })
	})},
	{"a link to nowhere for a while", nil, writing(func(path, text string) error {
		return forAWhile(path, text, func() error { return os.Symlink("nowhere", path) })
	})},
	{"a directory for a moment", nil, writing(func(path, text string) error {
		err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
		briefly(filepath.Dir(path))
		return errors.Join(err, os.Remove(path), write(path, text))
	})},
	{"a file and a link in turn", nil, func(s *site, text string) error {
		if s.run%2 == 1 {
			return s.swapLink(text)
		}
		return renameOver(s.file(), text)
	}},
	{"held up in the middle", (*site).startHeldUp, (*site).heldUp},
	{"under another name", nil, (*site).rename},
	{"in the other format", nil, (*site).convert},
}

func exchange(path, text string) error {
	other := path + ".tmp"
	return errors.Join(
		write(other, text), unix.Renameat2(unix.AT_FDCWD, other, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE), os.Remove(other))
}

// renamedEmpty puts an empty file in the place of one, and writes it then.
func renamedEmpty(path, text string) error {
	return change(path+".tmp", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, func(f *os.File) error {
		err := os.Rename(f.Name(), path)
		briefly(filepath.Dir(path))
		return errors.Join(err, blocks(f, text))
	})
}

// backwards writes the blocks of a file, the last one first.
func backwards(f *os.File, text string) error {
	for end := len(text); end > 0; end -= min(end, 100) {
		from := max(0, end-100)
		if _, err := f.WriteAt([]byte(text[from:end]), int64(from)); err != nil {
			return err
		}
	}
	return nil
}

// direct writes past the cache, where the file system can do that.
func direct(path, text string) error {
	memory, err := unix.Mmap(-1, 0, len(text), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
	if err != nil {
		return err
	}
	copy(memory, text)
	flags := unix.O_WRONLY | unix.O_DIRECT
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, unix.EINVAL) {
		f, err = os.OpenFile(path, flags&^unix.O_DIRECT, 0)
	}
	if err != nil {
		return errors.Join(err, unix.Munmap(memory))
	}
	_, err = f.Write(memory)
	return errors.Join(err, f.Close(), unix.Munmap(memory))
}

// mapped writes a file by way of a mapping alone.
func mapped(path, text string) error {
	return change(path, unix.O_RDWR, func(f *os.File) error { return mapOver(f, text) })
}

func mapOver(f *os.File, text string) error {
	memory, err := unix.Mmap(int(f.Fd()), 0, len(text), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(memory, text)
	return errors.Join(unix.Msync(memory, unix.MS_SYNC), unix.Munmap(memory))
}

// fromFile returns a way that fills a file from another one that is open.
func fromFile(fill func(to, from *os.File, size int) error) func(*site, string) error {
	return func(s *site, text string) error {
		if err := write(s.fresh(), text); err != nil {
			return err
		}
		return change(s.fresh(), unix.O_RDONLY, func(from *os.File) error {
			return change(s.file(), unix.O_WRONLY|unix.O_TRUNC, func(to *os.File) error { return fill(to, from, len(text)) })
		})
	}
}

// splice has a pipe between the files.
func splice(to, from *os.File, size int) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	_, in := unix.Splice(int(from.Fd()), nil, int(w.Fd()), nil, size, 0)
	_, out := unix.Splice(int(r.Fd()), nil, int(to.Fd()), nil, size, 0)
	return errors.Join(in, out, r.Close(), w.Close())
}

// submit writes a file by an asynchronous request, io_submit(2).
func submit(f *os.File, text string) error {
	var ring uintptr
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&ring)), 0); errno != 0 {
		return fmt.Errorf("io_setup: %w", errno)
	}
	defer unix.Syscall(unix.SYS_IO_DESTROY, ring, 0, 0)
	data := []byte(text)
	defer runtime.KeepAlive(data)
	const pwrite = 1                                    // IOCB_CMD_PWRITE
	var request [64]byte                                // struct iocb, <linux/aio_abi.h>
	binary.NativeEndian.PutUint16(request[16:], pwrite) // aio_lio_opcode
	binary.NativeEndian.PutUint32(request[20:], uint32(f.Fd()))
	binary.NativeEndian.PutUint64(request[24:], uint64(uintptr(unsafe.Pointer(&data[0]))))
	binary.NativeEndian.PutUint64(request[32:], uint64(len(data)))
	requests := [1]*[64]byte{&request}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, ring, 1, uintptr(unsafe.Pointer(&requests))); errno != 0 {
		return fmt.Errorf("io_submit: %w", errno)
	}
	var done [4]uint64 // struct io_event
	if _, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, ring, 1, 1, uintptr(unsafe.Pointer(&done)), 0, 0); errno != 0 {
		return fmt.Errorf("io_getevents: %w", errno)
	}
	if int(done[2]) != len(data) {
		return fmt.Errorf("%d of %d bytes were written", int64(done[2]), len(data))
	}
	return nil
}

func (s *site) linkHard(text string) error {
	return errors.Join(write(s.target(), text), os.Link(s.target(), s.file()))
}

// forAWhile has something else in the place of a file for longer than anything waits for quiet.
func forAWhile(path, text string, instead func() error) error {
	err := errors.Join(os.Remove(path), instead())
	time.Sleep(2 * quietTime)
	return errors.Join(err, renameOver(path, text))
}

// startHeldUp writes a file that begins with another service.
func (s *site) startHeldUp(string) error {
	s.name = s.title + ".toml"
	return s.plain(s.beginning() + tomlFile(s.services))
}

func (s *site) beginning() string {
	return tomlFile([]Service{s.service("-first", s.env.loadBalancer(1), s.env.Local[0])})
}

// heldUp writes what is valid when it is cut off in the middle, where it is held up for
// longer than a file must be quiet.
func (s *site) heldUp(string) error {
	return change(s.file(), unix.O_WRONLY|unix.O_TRUNC, func(f *os.File) error {
		_, err := f.WriteString(s.beginning())
		time.Sleep(3 * quietTime)
		return errors.Join(err, blocks(f, tomlFile(s.services)))
	})
}

// rename gives the file another name, and then writes it.
func (s *site) rename(text string) error {
	old := s.file()
	s.name = fmt.Sprintf("%s-%d.json", s.title, s.run)
	return errors.Join(os.Rename(old, s.file()), write(s.file(), text))
}

// convert replaces the file by one in the other format.
func (s *site) convert(text string) error {
	old := s.file()
	s.name = s.title + []string{".json", ".toml"}[s.run%2]
	if filepath.Ext(s.name) == ".toml" {
		text = tomlFile(s.services)
	}
	return errors.Join(write(filepath.Join(s.dir, "."+s.name), text), os.Remove(old), os.Rename(filepath.Join(s.dir, "."+s.name), s.file()))
}
