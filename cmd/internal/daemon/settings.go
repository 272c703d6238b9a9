package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"svcproxy/cmd/internal/hostsetup"
	"svcproxy/configs"
	"svcproxy/source"
	"svcproxy/source/file"
)

// settingsPoll is how often svcproxy.toml is read. A new text counts when it is
// found twice, so that none is taken that is half written.
const settingsPoll = 400 * time.Millisecond

// goneAfter is how many looks in a row must find no svcproxy.toml, 2 s, for it to be
// gone: as long as a service file may wait for others.
const goneAfter = 5

// followSettings takes over what changes in svcproxy.toml, and reads everything
// again when told to, until ctx ends. A disk may keep it for longer: it then changes
// nothing any more.
func (d *daemon) followSettings(ctx context.Context) {
	tick := time.NewTicker(settingsPoll)
	defer tick.Stop()
	seen, trouble := d.text, ""
	missed := 0 // looks that found no file
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.Reload:
			d.reload(ctx)
			seen = d.text
		case <-tick.C:
			now, err := d.contents()
			if ctx.Err() != nil {
				return
			}
			if errors.Is(err, errNoText) && d.text == nil {
				continue // it says as much as none
			}
			if err != nil {
				if why := err.Error(); why != trouble { // not for a moment only
					trouble = why
				} else if !bytes.Equal(d.text, unknown) {
					d.refuse([]source.Fault{d.noText(err)})
				}
				continue
			}
			if missed++; now != nil {
				missed = 0
			} else if missed < goneAfter && d.text != nil {
				continue // somebody may be about to put it back
			}
			if settled := bytes.Equal(now, seen); settled && !bytes.Equal(now, d.text) {
				d.text = now
				d.loadSettings(ctx)
			}
			seen, trouble = now, ""
		}
	}
}

// path returns where svcproxy.toml is.
func (d *daemon) path() string { return filepath.Join(d.ConfigDir, file.SettingsName) }

var errNoText = errors.New("it says nothing")

// contents returns the text at path, nil where there is no file. An empty one,
// as there is for a moment while a file is written, and what is no file, as a
// pipe that would block, are errors.
func contents(path string) ([]byte, error) {
	f, info, err := file.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer f.Close()
	if info.Size() == 0 {
		return nil, errNoText
	}
	return io.ReadAll(f)
}

// reload reads settings and services again, and compares all with the kernel. systemd
// is not told of it before the first sync: READY=1 would say that services are held.
func (d *daemon) reload(ctx context.Context) {
	d.log.Info("reading everything again")
	if d.health.Ready() {
		d.Notify(reloading())
		defer func() {
			if ctx.Err() == nil {
				d.Notify("READY=1")
			}
		}()
	}
	switch text, err := d.contents(); {
	case ctx.Err() != nil:
		return
	case err != nil:
		d.refuse([]source.Fault{d.noText(err)})
	default:
		d.text = text
		d.loadSettings(ctx)
	}
	if s, failed := d.modeFailed(); failed {
		d.wantMode(s)
	}
	d.files.Reload()
	d.loop.Resync()
	if err := d.lookAtAddresses(); err != nil {
		d.log.Warn("the addresses of this host stay as last read", "err", err)
	}
	d.mu.Lock()
	mode := d.kernel.Mode
	d.mu.Unlock()
	for _, w := range hostsetup.Verify(ctx, d.fixed, mode) {
		d.log.Warn(w)
	}
}

// warnOfSysctls says which settings of the kernel keep traffic from flowing, and did
// not when it was last called: others change them, and an ip_vs that was removed and
// loaded anew has the kernel's defaults. It is of the goroutine of followMode.
func (d *daemon) warnOfSysctls() {
	d.mu.Lock()
	s, mode := d.settings, d.kernel.Mode
	d.mu.Unlock()
	now := hostsetup.VerifySysctls(s, mode)
	for _, w := range now {
		if !slices.Contains(d.sysctls, w) {
			d.log.Warn(w)
		}
	}
	d.sysctls = now
}

// loadSettings takes over svcproxy.toml as it is now. One with faults changes nothing.
func (d *daemon) loadSettings(ctx context.Context) {
	s, faults, err := d.Load(d.path())
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		faults = []source.Fault{d.noText(err)}
	}
	if fatal(faults) {
		text := d.text
		d.refuse(faults)
		d.text = text
		return
	}
	for _, f := range faults {
		d.log.Warn(f.String())
	}
	d.use(s, faults)
	d.keep(ctx)
}

// refuse keeps the settings in use, for the file has faults.
func (d *daemon) refuse(faults []source.Fault) {
	for _, f := range faults {
		d.log.Warn(f.String())
	}
	d.log.Error("svcproxy.toml has faults: the settings in use stay")
	d.text = unknown
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = faults
}

// use makes s the settings in use, as far as that can be done without a restart.
func (d *daemon) use(s configs.Settings, faults []source.Fault) {
	now, restart := atRunTime(d.fixed, s)
	d.mu.Lock()
	changed, mode := !reflect.DeepEqual(now, d.settings), !sameChoice(now, d.settings)
	news := slices.DeleteFunc(slices.Clone(restart), func(name string) bool { return slices.Contains(d.restart, name) })
	d.settings, d.faults, d.restart = now, faults, restart
	d.mu.Unlock()
	if len(news) > 0 {
		d.log.Warn("settings changed that are read at start only: restart svcproxy to use them", "settings", news)
	}
	if !changed {
		return
	}
	d.log.Info("settings changed")
	setLevel(d.level, now.Log.Level)
	d.loop.SetIntervals(now.Sync.MinInterval, now.Sync.ResyncInterval)
	d.setNode()
	if mode {
		d.wantMode(now)
	}
}

// wantMode has the mode of s used, in place of one asked for but not yet looked at.
func (d *daemon) wantMode(s configs.Settings) {
	select {
	case <-d.modeWanted:
	default:
	}
	d.modeWanted <- s
}

// atRunTime returns want with all that only a restart can change as it is in
// fixed, and the names of what that was.
func atRunTime(fixed, want configs.Settings) (now configs.Settings, restart []string) {
	now = want
	differ := func(name string, equal bool) {
		if !equal {
			restart = append(restart, name)
		}
	}
	differ("sources", slices.Equal(fixed.Sources, want.Sources))
	differ("node_name", fixed.NodeName == want.NodeName)
	differ("families", slices.Equal(fixed.Families, want.Families))
	differ("masquerade_bit", fixed.MasqueradeBit == want.MasqueradeBit)
	differ("http_address", fixed.HTTPAddress == want.HTTPAddress)
	differ("metrics_address", fixed.MetricsAddress == want.MetricsAddress)
	differ("ipvs", fixed.IPVS == want.IPVS)
	differ("kubernetes", fixed.Kubernetes == want.Kubernetes)
	differ("limits", fixed.Limits == want.Limits)
	differ("log.format", fixed.Log.Format == want.Log.Format)
	now.Sources, now.NodeName, now.Families = fixed.Sources, fixed.NodeName, fixed.Families
	now.MasqueradeBit, now.HTTPAddress, now.MetricsAddress = fixed.MasqueradeBit, fixed.HTTPAddress, fixed.MetricsAddress
	now.IPVS, now.Kubernetes, now.Limits, now.Log.Format = fixed.IPVS, fixed.Kubernetes, fixed.Limits, fixed.Log.Format
	return now, restart
}

// fatal tells whether any fault is more than a warning.
func fatal(faults []source.Fault) bool {
	return slices.ContainsFunc(faults, func(f source.Fault) bool { return !f.Warning })
}
