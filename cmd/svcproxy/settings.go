package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/check"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// load returns svcproxy.toml at path with flags laid over it.
func load(path string, flags *configs.Flags) (configs.Settings, []source.Fault, error) {
	s, faults, err := configs.Load(path)
	if err != nil || source.AnyError(faults) {
		return s, faults, err
	}
	inFile := usable(s)
	flags.Apply(&s)
	if err := usable(s); err != nil {
		f := source.Fault{Msg: err.Error()}
		if inFile != nil && inFile.Error() == err.Error() {
			f.Pos.File = path
		}
		faults = append(faults, f)
	}
	return s, faults, nil
}

// checker returns what reads the files of the configuration directory as the daemon would.
func (p *program) checker(flags *configs.Flags) *check.Checker {
	return &check.Checker{
		ConfigDir: p.dirs.config, StateDir: p.dirs.state, Rules: sources.Rules,
		Load: func(path string) (configs.Settings, []source.Fault, error) { return load(path, flags) },
	}
}

// usable returns what is wrong with settings as a whole.
func usable(s configs.Settings) error {
	if err := s.Check(); err != nil {
		return err
	}
	return sources.Supported(s)
}

// settings returns the effective settings, for commands that only need them.
// Faults are written out.
func (p *program) settings(flags *configs.Flags) (configs.Settings, error) {
	s, faults, err := load(filepath.Join(p.dirs.config, read.SettingsName), flags)
	if err != nil {
		return s, unreachable(err)
	}
	if err := p.report(faults, false); err != nil {
		return s, err
	}
	if source.AnyError(faults) {
		return s, &codedError{code: exitFailed}
	}
	return s, nil
}

// settingsOrLastGood is settings, or where these have faults the last ones that the
// daemon could use, as it does.
func (p *program) settingsOrLastGood(flags *configs.Flags) (configs.Settings, error) {
	s, err := p.settings(flags)
	if err == nil {
		return s, nil
	}
	path := filepath.Join(p.dirs.state, read.SettingsName)
	if _, none := os.Stat(path); none != nil {
		return s, err
	}
	good, faults, unread := load(path, flags)
	if unread != nil || source.AnyError(faults) {
		return s, err
	}
	_, err = fmt.Fprintf(p.stderr, "using the last good settings, %s\n", path)
	return good, err
}

func configCommand(p *program) *cobra.Command {
	var flags configs.Flags
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the effective settings",
		Long:  `Config prints the settings that run would use, as a svcproxy.toml: defaults, the file, and flags over it.`,
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := p.settings(&flags)
			if err != nil {
				return err
			}
			_, err = p.stdout.Write(configs.Format(s))
			return err
		},
	}
	flags.Bind(cmd.Flags())
	return cmd
}
