// Light, dark, or whatever the reader's system says.

const THEMES = ["auto", "light", "dark"];

function buildTheme() {
  const label = (theme) => t(`theme.${theme}`);
  const toggle = button("", () => setTheme(THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length]), {
    class: "theme",
  });
  const current = () => document.documentElement.dataset.theme || "auto";
  const setTheme = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    toggle.textContent = label(theme);
    toggle.setAttribute("aria-label", t("theme.label", { theme: label(theme) }));
    emit("theme");
  };
  byId("theme").append(toggle);
  setTheme("auto");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => current() === "auto" && emit("theme"));
}
