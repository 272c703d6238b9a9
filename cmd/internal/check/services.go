package check

import (
	"fmt"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
)

// Services returns the settings and the services of the configuration directory that a
// daemon would use, without what is wrong with the rest.
func (c *Checker) Services() (configs.Settings, []*source.Service, error) {
	in := c.setting(c.ConfigDir, new(Report))
	files, err := in.rules.ReadDir(c.ConfigDir)
	if err != nil {
		return in.settings, nil, fmt.Errorf("reading service files: %w", err)
	}
	c.recall(&in, c.ConfigDir, files)
	return in.settings, in.tracker(files).InUse(), nil
}
