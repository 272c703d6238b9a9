//go:build vm

package vmtests

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/vmtests/guest"
)

// packageSteps are what packages go through on node, which has svcproxy from make install before. The way back to an
// older version is that of an upgrade, and the rpm's scripts differ little: they are for make soak-vm.
func packageSteps() []step {
	list := []step{
		{"packages are the same from another folder", (*site).testPackagesAreSame},
		{"deb: install", (*site).testInstall},
		{"deb: upgrade under traffic", (*site).testUpgrade},
		{"deb: remove", (*site).testRemove},
		{"deb: purge", (*site).testPurge},
	}
	if os.Getenv("SVCPROXY_SOAK") == "" {
		return list
	}
	list = slices.Insert(list, 3, step{"deb: downgrade under traffic", (*site).testDowngrade})
	list = append(list, step{"deb: purge after half an upgrade", (*site).testPurgeUnpacked})
	return append(list, rpmSteps...)
}

// Two versions, as git describe tells of them. The programs differ in nothing else.
const oldVersion, newVersion = "v1.0.0", "v1.0.0-1-gabcdef0"

// packageKinds are the endings of packages' names; node has those of a version as /root/VERSION.ENDING.
var packageKinds = []string{".deb", ".rpm"}

// testPackagesAreSame makes packages in this folder and in a copy of it, and puts them on node.
func (s *site) testPackagesAreSame(t *testing.T) {
	copied := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "sh", "-ec", "cd ..; for f in *; do case $f in bin | dist) ;; *) cp -R \"$f\" "+copied+" ;; esac; done").CombinedOutput()
	if err != nil {
		t.Fatalf("copying the tree: %v\n%s", err, out)
	}
	first := buildPackages(t, "..", oldVersion)
	again := buildPackages(t, copied, oldVersion)
	if !slices.Equal(slices.Sorted(maps.Keys(first)), slices.Sorted(maps.Keys(again))) || len(first) != 3 {
		t.Fatalf("made %q, and %q in another folder", slices.Sorted(maps.Keys(first)), slices.Sorted(maps.Keys(again)))
	}
	for name, data := range first {
		if again[name] != data {
			t.Errorf("%s has %d bytes, and others in another folder, %d%s", name, len(data), len(again[name]), differences(data, again[name]))
		}
	}
	s.putPackages(t, oldVersion, first)
	s.putPackages(t, newVersion, buildPackages(t, "..", newVersion))
}

// differences returns the lines of deb packages' contents that are in one of them only, each after a line break.
func differences(one, other string) string {
	a, b := contents(one), contents(other)
	var s strings.Builder
	for _, line := range a {
		if !slices.Contains(b, line) {
			s.WriteString("\n- " + line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			s.WriteString("\n+ " + line)
		}
	}
	return s.String()
}

// contents returns a line for each part of a deb package, which is an ar archive, and for each file in a part that is a
// tar archive. Of another kind of file it has no line.
func contents(deb string) (lines []string) {
	const magic, header = "!<arch>\n", 60
	if !strings.HasPrefix(deb, magic) {
		return nil
	}
	for deb = deb[len(magic):]; len(deb) >= header; {
		name := strings.TrimRight(deb[:16], " ")
		size, err := strconv.Atoi(strings.TrimSpace(deb[48:58]))
		if err != nil || header+size > len(deb) {
			return append(lines, fmt.Sprintf("%q has %q bytes, which cannot be", name, deb[48:58]))
		}
		part := deb[header : header+size]
		lines = append(lines, fmt.Sprintf("%s: %x, %q", name, sha256.Sum256([]byte(part)), deb[:header]))
		deb = deb[min(header+size+size%2, len(deb)):]
		unpacked, err := gzip.NewReader(strings.NewReader(part))
		if err != nil {
			continue
		}
		for files := tar.NewReader(unpacked); ; {
			h, err := files.Next()
			if err != nil {
				if err != io.EOF {
					lines = append(lines, name+": "+err.Error())
				}
				break
			}
			data, err := io.ReadAll(files)
			lines = append(lines, fmt.Sprintf("%s: %+v, %x, %v", name, *h, sha256.Sum256(data), err))
		}
	}
	return lines
}

// buildPackages returns what a folder's packaging/build makes of a version, by name.
func buildPackages(t *testing.T, folder, version string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(folder, "packaging/build"), version, dir, "amd64")
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000") // the copy has no commit
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("making packages of %s: %v\n%s", version, err, out)
	}
	files, err := guest.AppendTree(nil, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	made := make(map[string]string)
	for _, f := range files {
		made[f.Path] = string(f.Data)
	}
	return made
}

func (s *site) putPackages(t *testing.T, version string, made map[string]string) {
	t.Helper()
	for name, data := range made {
		if kind := filepath.Ext(name); slices.Contains(packageKinds, kind) {
			if err := s.node.WriteFile(t.Context(), guest.Home+"/"+version+kind, []byte(data), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// testInstall: where services are written already, they serve as soon as the package is there.
func (s *site) testInstall(t *testing.T) {
	s.uninstall(t)
	s.must(t, "dpkg", "-i", guest.Home+"/"+oldVersion+".deb")
	s.runs(t, oldVersion)
	s.must(t, "systemctl", "is-enabled", "svcproxy")
	s.must(t, "getent", "group", "svcproxy", "svcproxy-admin")
	s.reaches(t, "one", "two")
}

// uninstall removes what make install put on node, and what tests did since.
func (s *site) uninstall(t *testing.T) {
	t.Helper()
	s.must(t, "sh", "-ec", `systemctl disable --now svcproxy; svcproxy cleanup
		rm -rf /var/lib/svcproxy /usr/share/svcproxy /usr/share/doc/svcproxy /etc/svcproxy/other.toml
		for g in svcproxy svcproxy-admin; do ! getent group $g || groupdel $g; done`)
	remove := []string{"rm", "-f"}
	for _, f := range s.config.Files {
		if strings.HasPrefix(f.Path, "/usr/") && strings.Contains(f.Path, "svcproxy") {
			remove = append(remove, f.Path)
		}
	}
	s.must(t, remove...)
	if err := s.node.WriteFile(t.Context(), "/etc/svcproxy/web.toml", bothBackends, 0o640); err != nil {
		t.Fatal(err)
	}
	s.nothingInKernel(t)
}

func (s *site) nothingInKernel(t *testing.T) {
	t.Helper()
	if left := s.must(t, "sh", "-c", ownObjects+" || true"); left != "" {
		t.Fatalf("in the kernel of node:\n%s", left)
	}
}

// runs checks that the unit is active, and that its process has the program that is there, of this version.
func (s *site) runs(t *testing.T, version string) {
	t.Helper()
	s.active(t)
	if exe := s.must(t, "readlink", "/proc/"+s.property(t, "MainPID")+"/exe"); exe != "/usr/sbin/svcproxy" { // one that is gone is "(deleted)"
		t.Fatalf("the daemon is %q", exe)
	}
	if got := s.must(t, "svcproxy", "version"); !strings.HasPrefix(got, "svcproxy "+version+",") {
		t.Fatalf("the program is %q, want %s", got, version)
	}
}

// Connections go on over an upgrade, and over the way back.
func (s *site) testUpgrade(t *testing.T) {
	s.change(t, newVersion, ".deb", "dpkg", "--refuse-downgrade", "-i")
}
func (s *site) testDowngrade(t *testing.T) { s.change(t, oldVersion, ".deb", "dpkg", "-i") }

// change installs another version while a client uses the service.
func (s *site) change(t *testing.T, version, kind string, install ...string) {
	t.Helper()
	stream := begin(t, s.client, "streaming", "peer", "stream", vip4, vip6)
	s.must(t, append(install, guest.Home+"/"+version+kind)...)
	s.runs(t, version)
	judge(t, stream.end())
}

// testRemove: without the package, traffic goes on.
func (s *site) testRemove(t *testing.T) {
	s.must(t, "dpkg", "-r", "svcproxy")
	s.gone(t, "/etc/svcproxy", "/run/svcproxy", "/var/lib/svcproxy")
	s.reaches(t, "one", "two")
}

// testPurge: a purge leaves what the administrator wrote, and nothing else.
func (s *site) testPurge(t *testing.T) {
	s.must(t, "dpkg", "-P", "svcproxy")
	s.nothingInKernel(t)
	s.gone(t, "/etc/svcproxy")
	s.must(t, "sh", "-c", "! dpkg-query -W svcproxy && ! find /etc/systemd /var/lib/systemd | grep svcproxy")
}

// testPurgeUnpacked: where an upgrade stopped after its files were there, dpkg calls nothing before a removal, and the
// old daemon runs still.
func (s *site) testPurgeUnpacked(t *testing.T) {
	s.must(t, "dpkg", "-i", guest.Home+"/"+oldVersion+".deb")
	s.active(t)
	s.must(t, "dpkg", "--unpack", guest.Home+"/"+newVersion+".deb")
	s.must(t, "dpkg", "-P", "svcproxy")
	s.nothingInKernel(t)
	s.gone(t, "/etc/svcproxy")
}

// Where files named after svcproxy may be. systemd, its helper and dpkg note the unit and the package by name.
const svcproxyFiles = `find /etc /usr /var/lib /run \( -path /etc/systemd -o -path '/run/systemd' -o -path /var/lib/systemd -o -path /var/lib/dpkg \) -prune -o -name '*svcproxy*' -prune -print | sort`

// gone checks that no process is left, that of files named after svcproxy only these are, and
// that those of the administrator are as they were.
func (s *site) gone(t *testing.T, left ...string) {
	t.Helper()
	if out, err := s.node.Output(t.Context(), "pidof", "svcproxy"); err == nil {
		t.Errorf("running: process %s", out)
	}
	if got := strings.Fields(s.must(t, "sh", "-c", svcproxyFiles)); !slices.Equal(got, left) {
		t.Errorf("left are %q, want %q", got, left)
	}
	if text, err := s.node.ReadFile(t.Context(), "/etc/svcproxy/web.toml"); string(text) != string(bothBackends) {
		t.Errorf("web.toml is %q, %v", text, err)
	}
}
