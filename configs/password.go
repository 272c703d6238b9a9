package configs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

// maxPassword is TCP_MD5SIG_MAXKEYLEN, <linux/tcp.h>, in bytes.
const maxPassword = 80

// Password returns the password of a peer, empty where it has none. It is in no error.
func (p *BGPPeer) Password() (string, error) {
	if p.PasswordFile == "" {
		return "", nil
	}
	return readPassword(p.PasswordFile, fmt.Sprintf("peer %s", p.Address), maxPassword)
}

// readPassword reads a file that holds the password of whom, of at most so many bytes.
func readPassword(path, whom string, most int) (string, error) {
	f, info, err := disk.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading the password of %s: %w", whom, err)
	}
	defer f.Close()
	if err := isSecret(info); err != nil {
		return "", fmt.Errorf("%s, the password of %s, %w", path, whom, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(most)+3)) // an end of line, and a byte too many
	if err != nil {
		return "", fmt.Errorf("reading the password of %s: %w", whom, err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if len(password) == 0 || len(password) > most || !isPrintable(password) {
		return "", fmt.Errorf("%s, the password of %s, does not hold one line of 1 to %d bytes that can be printed", path, whom, most)
	}
	return password, nil
}

// isSecret returns why a file can be read or written by others than root and this user.
func isSecret(info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("has mode %04o, so others can use it: chmod 0600", info.Mode().Perm())
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("has an owner that is not known")
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("belongs to user %d: chown root", st.Uid)
	}
	return nil
}

// CheckPasswords returns a fault for each password of a peer that cannot be used; path is that of
// svcproxy.toml. Services do not wait for them, so the settings are used all the same.
func (b *BGP) CheckPasswords(path string) (faults []source.Fault) {
	errs := make([]error, len(b.Peers))
	var wg sync.WaitGroup // all at once: a file system that does not answer is waited for once
	for i := range b.Peers {
		p := &b.Peers[i]
		wg.Go(func() {
			_, errs[i] = disk.Answer(p.PasswordFile, p.Password)
			if errors.Is(errs[i], disk.ErrNoAnswer) {
				errs[i] = fmt.Errorf("reading the password of peer %s: %w", p.Address, errs[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			faults = append(faults, source.Fault{Pos: source.Position{File: path}, Msg: source.Printable(err.Error())})
		}
	}
	return faults
}
