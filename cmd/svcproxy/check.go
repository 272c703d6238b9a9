package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"svcproxy/cmd/internal/check"
	"svcproxy/configs"
	"svcproxy/source"
)

func (p *program) checkCommand() *cobra.Command {
	var asJSON bool
	var flags configs.Flags
	cmd := &cobra.Command{
		Use:   "check [PATH ...]",
		Short: "Read files, print every fault, touch nothing",
		Long: `Check reads files as the daemon would and prints every fault of every file to
standard error, one a line, as FILE:LINE:COLUMN: what is wrong. Warnings are
printed too; they do not count.

A directory is checked whole, with svcproxy.toml and all clashes between files.
A file in the configuration directory is checked against the others there, any
other one alone. Without PATH the configuration directory is checked.`,
		RunE: func(_ *cobra.Command, paths []string) error {
			if len(paths) == 0 {
				paths = []string{p.dirs.config}
			}
			return p.check(paths, asJSON, &flags)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each fault as a JSON object")
	flags.Bind(cmd.Flags())
	return cmd
}

// check prints the faults of all paths. One that cannot be read does not keep
// the others from being checked.
func (p *program) check(paths []string, asJSON bool, flags *configs.Flags) error {
	result := new(codedError)
	for _, path := range paths {
		faults, err := check.Path(path, p.dirs.config, func(path string) (configs.Settings, []source.Fault, error) {
			return load(path, flags)
		})
		if err != nil {
			fmt.Fprintln(p.stderr, err)
			result.code = exitUnreachable
		}
		if err := p.report(faults, asJSON); err != nil {
			return err
		}
		if check.Fatal(faults) {
			result.code = max(result.code, exitFailed)
		}
	}
	if result.code == 0 {
		return nil
	}
	return result
}

// report prints faults to standard error, one a line.
func (p *program) report(faults []source.Fault, asJSON bool) error {
	out := json.NewEncoder(p.stderr)
	for _, f := range faults {
		var err error
		if asJSON {
			err = out.Encode(f)
		} else {
			_, err = fmt.Fprintln(p.stderr, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
